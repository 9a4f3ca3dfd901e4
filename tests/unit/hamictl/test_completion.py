"""Completion in bash, zsh and fish, and through kubectl's plug-ins."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
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


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package {name})")
    return found


def test_fish_completes_verbs_and_kinds_with_the_printed_script() -> None:
    script = (
        "hamictl completion fish | source;"
        ' complete -C "hamictl expl"; complete -C "hamictl get dev"'
    )

    offered = run(shell("fish"), "-c", script).splitlines()

    assert [line.split("\t")[0] for line in offered] == ["explain", "devices"]


def test_zsh_completes_verbs_and_kinds_with_the_printed_script(tmp_path: Path) -> None:
    """Typed on a terminal: there is no other way to ask zsh."""
    zsh = shell("zsh")
    typed = (
        "autoload -Uz compinit; compinit -u -D; source <(hamictl completion zsh); echo rea''dy\n",
        "hamictl expl\t",
        "\x15hamictl get dev\t",
    )
    answers = (b"ready", b"hamictl explain", b"hamictl get devices")
    terminal, theirs = pty.openpty()
    path = f"{BIN}:{os.environ['PATH']}"
    child = subprocess.Popen(
        [zsh, "-f", "-i"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env=os.environ | {"PATH": path, "TERM": "dumb"},
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        for keys, answer in zip(typed, answers, strict=True):
            os.write(terminal, keys.encode())
            read_until(terminal, answer)
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def read_until(terminal: int, wanted: bytes) -> None:
    got, until = b"", time.monotonic() + PATIENCE_S
    while wanted not in got:
        ready, _, _ = select.select([terminal], [], [], until - time.monotonic())
        assert ready, got
        got += os.read(terminal, 65536)


@pytest.mark.parametrize(("name", "holds"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_other_shells_get_their_script(name: str, holds: str) -> None:
    shown = CliRunner().invoke(app, ["completion", name])

    assert shown.exit_code == 0
    assert holds in shown.stdout
    assert "_HAMICTL_COMPLETE" in shown.stdout
