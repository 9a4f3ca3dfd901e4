"""Entry points of `kubectl hami COMMAND` and of its completion.

kubectl finds `kubectl-hami` on the path, and from 1.26 on asks `kubectl_complete-hami` for
candidates: one a line, at the end cobra's directive (https://pkg.go.dev/github.com/spf13/cobra).
"""

from __future__ import annotations

import shlex
import subprocess
import sys

from hamictl.__main__ import run_app

NO_FILE_NAMES = ":4"
"""Completion without file names (cobra's ShellCompDirectiveNoFileComp)."""
TIMEOUT_S = 10.0


def main() -> None:
    """Run `kubectl-hami`."""
    run_app("kubectl hami")


def complete() -> None:
    """Run `kubectl_complete-hami`, whose arguments are those typed so far."""
    given = sys.argv[1:] or [""]
    quoted = shlex.join(["hamictl", *given])
    environment = (
        "_HAMICTL_COMPLETE=complete_bash",
        f"COMP_WORDS={quoted}",
        f"COMP_CWORD={len(given)}",
    )
    # `env` passes on our environment, with these three variables.
    command = ["env", *environment, sys.executable, "-m", "hamictl"]
    try:
        answered = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        answered = ""
    candidates = [line for line in answered.splitlines() if line]
    sys.stdout.write("\n".join([*candidates, NO_FILE_NAMES]) + "\n")
