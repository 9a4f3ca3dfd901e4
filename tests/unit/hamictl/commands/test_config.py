"""`hamictl config`: every setting, its value and where it comes from; secrets are not shown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hamictl.__main__ import app
from hamictl.config_file import OPTIONS, parse_config
from hamictl.settings import NOT_IN_THE_FILE, Settings
from typer.testing import CliRunner

KNOWN = [name for name in Settings.model_fields if name not in NOT_IN_THE_FILE]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HAMI_FOLDER", str(tmp_path / "no-system"))
    monkeypatch.setenv("HAMI_METRICS_URL", "http://m:9395")
    for name in ("HAMICTL_CONFIG", "KUBECONFIG", "HAMI_SCHEDULER_URL"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "hamictl.toml"
    path.write_text('scheduler_url = "http://s"\nutc = true\nmetrics_token = "do-not-show"')
    path.chmod(0o644)
    return path


def test_each_setting_has_its_value_and_where_it_comes_from(written: Path) -> None:
    done = CliRunner().invoke(app, ["config", "-o", "json"])

    rows = {row["setting"]: row for row in json.loads(done.stdout)["items"]}
    assert list(rows) == [*OPTIONS, *KNOWN]
    assert (rows["scheduler_url"]["value"], rows["scheduler_url"]["source"]) == ("http://s", "file")
    assert (rows["metrics_url"]["value"], rows["metrics_url"]["source"]) == (
        "http://m:9395",
        "environment",
    )
    assert (rows["utc"]["value"], rows["utc"]["source"]) == (True, "file")
    assert (rows["color"]["value"], rows["color"]["source"]) == ("auto", "default")
    assert rows["kubeconfig"] == {
        "setting": "kubeconfig",
        "value": None,
        "source": "default",
        "variable": "KUBECONFIG",
    }
    assert rows["metrics_token"]["value"] == "(set, not shown)"
    assert "do-not-show" not in done.output


def test_a_secret_that_others_may_read_is_reported(written: Path) -> None:
    warned = CliRunner().invoke(app, ["config"])
    written.chmod(0o600)
    quiet = CliRunner().invoke(app, ["config"])

    assert "has a secret that others may read: chmod 600" in warned.stderr
    assert str(written) in quiet.stderr
    assert "chmod" not in quiet.stderr
    assert "do-not-show" not in warned.output + quiet.output


def test_the_example_has_every_setting_and_is_a_file_that_is_taken(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["config", "--example"]).stdout
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    used = "\n".join(
        line for line in lines if " = " in line and line.split(" = ")[0].isidentifier()
    )

    assert tomllib.loads(text) == {}
    assert list(tomllib.loads(used)) == [*OPTIONS, *KNOWN]
    assert parse_config(used, tmp_path, KNOWN).exists
