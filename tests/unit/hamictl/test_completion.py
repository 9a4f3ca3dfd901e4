"""Completion in bash and through kubectl's plug-ins; the scripts of zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hamictl.__main__ import COMMANDS, app
from typer.testing import CliRunner

BIN = Path(sys.executable).parent
# A busy machine imports slowly.
PATIENCE_S = 120


def run(*argv: str | Path, **environment: str) -> str:
    path = f"{BIN}:{os.environ['PATH']}"
    return subprocess.run(
        [str(part) for part in argv],
        env=os.environ | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout


def test_bash_completes_verbs_with_the_printed_script() -> None:
    script = (
        "source <(hamictl completion bash); COMP_WORDS=(hamictl expl); COMP_CWORD=1; "
        '_hamictl_completion hamictl; echo "${COMPREPLY[@]}"'
    )

    assert run("bash", "-c", script) == "explain\n"


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (["expl"], ["explain"]),
        ([""], list(COMMANDS)),
        (["get", "--out"], ["--output"]),
        (["get", "dev"], ["devices"]),
        (["get", "it's \"odd"], []),
    ],
)
def test_kubectl_gets_candidates_and_the_directive_that_no_files_are_wanted(
    typed: list[str], wanted: list[str]
) -> None:
    assert run(BIN / "kubectl_complete-hami", *typed).splitlines() == [*wanted, ":4"]


def test_kubectl_itself_completes_and_runs_the_plug_in() -> None:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    kubectl = shutil.which("kubectl", path=f"{assets}:{os.environ['PATH']}")
    if kubectl is None:
        pytest.skip("no kubectl: set KUBEBUILDER_ASSETS")

    assert run(kubectl, "__complete", "hami", "expl").splitlines() == ["explain", ":4"]
    assert run(kubectl, "hami", "version").startswith("hamictl ")


@pytest.mark.parametrize(("shell", "holds"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_other_shells_get_their_script(shell: str, holds: str) -> None:
    shown = CliRunner().invoke(app, ["completion", shell])

    assert shown.exit_code == 0
    assert holds in shown.stdout
    assert "_HAMICTL_COMPLETE" in shown.stdout
