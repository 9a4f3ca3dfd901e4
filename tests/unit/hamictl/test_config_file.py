"""`~/.config/hamictl.toml`: its allowed entries, and the sentence for each mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.config_file import ConfigFile, parse_config, read_config

PATH = Path("/home/me/.config/hamictl.toml")
ADDRESSES = ("scheduler_url", "metrics_url", "kubeconfig")


def test_addresses_and_options_are_kept_apart() -> None:
    text = 'scheduler_url = "https://s:9444"\noutput = "wide"\nutc = true\nnamespace = "team-a"'

    found = parse_config(text, PATH, ADDRESSES)

    assert found.addresses == {"scheduler_url": "https://s:9444"}
    assert found.options == {"output": "wide", "utc": True, "namespace": "team-a"}
    assert found.exists


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "not TOML: "),
        ('schedular_url = "x"', "'schedular_url' is not a setting; did you mean scheduler_url?"),
        ('zzz = "x"', "'zzz' is not a setting; `hamictl config` lists all"),
        ("scheduler_url = 3", "scheduler_url is 3: use a text in quotes"),
        ('color = "red"', 'color is \'red\': use "auto" or "always" or "never"'),
        ('output = "csv"', 'output is \'csv\': use "table" or "wide" or "json" or "yaml"'),
        ('ascii = "yes"', "ascii is 'yes': use true or false"),
        ('namespace = ""', "namespace is '': use a text in quotes"),
        ("[table]\na = 1", "'table' is not a setting"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as failed:
        parse_config(text, PATH, ADDRESSES)

    assert str(failed.value).startswith(f"{PATH}: ")
    assert sentence in str(failed.value)
    assert "\n" not in str(failed.value)


def test_where_there_is_no_file_nothing_is_set(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"

    assert read_config(path, ADDRESSES, named=False) == ConfigFile(path=path)
    with pytest.raises(InvalidRequest, match=r"HAMICTL_CONFIG=.*does not exist"):
        read_config(path, ADDRESSES, named=True)


def test_what_is_no_text_and_no_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hamictl.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidRequest, match="not text in UTF-8"):
        read_config(path, ADDRESSES, named=False)
    with pytest.raises(InvalidRequest, match="not readable: Is a directory"):
        read_config(tmp_path, ADDRESSES, named=False)
