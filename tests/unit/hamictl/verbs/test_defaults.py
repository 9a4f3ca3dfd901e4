"""An option wins over the environment, and that over the user's file; a wrong one is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hamictl.__main__ import COMMANDS, app
from hamictl.config_file import OPTIONS
from hamictl.settings import Settings
from hamictl.verbs.lazy import OF_ONE_NAMESPACE, OWN_OUTPUT, PARAMETERS, load
from typer.testing import CliRunner


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, and an environment that sets nothing else."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HAMI_FOLDER", str(tmp_path / "no-system"))
    for name in ("HAMICTL_CONFIG", "KUBECONFIG", "HAMI_SCHEDULER_URL", "HAMICTL_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hamictl.toml"


def run_verb(*argv: str, **environment: str) -> str:
    done = CliRunner().invoke(app, argv, env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_form_of_an_answer_is_that_of_option_environment_and_file(written: Path) -> None:
    written.write_text('output = "json"')

    assert json.loads(run_verb("version"))["hamictl"]
    assert run_verb("version", HAMICTL_OUTPUT="table").startswith("hamictl ")
    assert run_verb("version", "-o", "table", HAMICTL_OUTPUT="json").startswith("hamictl ")


def test_an_address_is_that_of_environment_and_file(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_text(
        'scheduler_url = "http://file"\nkubeconfig = "~/kube"\nscheduler_token = "of the file"'
    )

    found = Settings()

    assert found.scheduler_url == "http://file"
    assert found.kubeconfig == Path.home() / "kube"
    assert found.scheduler_token.get_secret_value() == "of the file"
    monkeypatch.setenv("HAMI_SCHEDULER_URL", "http://environment")
    monkeypatch.setenv("KUBECONFIG", "/of/the/environment")
    assert Settings().scheduler_url == "http://environment"
    assert Settings().kubeconfig == Path("/of/the/environment")


def test_a_file_that_is_named_is_taken_in_place_of_the_usual_one(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_text('scheduler_url = "http://usual"')
    other = written.with_name("other.toml")
    other.write_text('scheduler_url = "http://other"')

    monkeypatch.setenv("HAMICTL_CONFIG", str(other))

    assert Settings().scheduler_url == "http://other"


@pytest.mark.parametrize("argv", [("version",), ("get", "pods"), ("config",), ("db", "check")])
def test_a_wrong_file_ends_each_verb_with_one_sentence(
    written: Path, argv: tuple[str, ...]
) -> None:
    written.write_text("color = 'red'")

    done = CliRunner().invoke(app, argv)

    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"hamictl: {written}: color is 'red'")


def test_the_help_of_a_verb_is_shown_all_the_same(written: Path) -> None:
    written.write_text("color = 'red'")

    assert "Usage" in run_verb("get", "--help")


def test_the_namespace_is_for_verbs_that_mean_one_pod() -> None:
    by_verb = {
        verb: {parameter.name: parameter for parameter in load(verb, command).params}
        for verb, command in COMMANDS.items()
    }

    assert {
        verb
        for verb, found in by_verb.items()
        if "namespace" in found and found["namespace"].default == "default"
    } == OF_ONE_NAMESPACE
    # What no verb has would be set in vain.
    assert set(PARAMETERS) == set(OPTIONS)
    for names in PARAMETERS.values():
        assert any(name in found for found in by_verb.values() for name in names)


def test_verbs_whose_form_is_another_are_left_alone() -> None:
    own = {
        verb
        for verb, command in COMMANDS.items()
        for parameter in load(verb, command).params
        if parameter.name == "output" and parameter.envvar != "HAMICTL_OUTPUT"
    }

    assert own == OWN_OUTPUT
