"""Entry point of `hamictl`: its commands by group, with the module of each."""

from __future__ import annotations

import io
import os
import sys

from typer.completion import completion_init  # type: ignore[attr-defined] # its own use of it is the same

from hamictl.exit_codes import ExitCode
from hamictl.verbs.lazy import LazyCommand, lazy_app

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "get": ("get:get", "List nodes, cards, pods, allocations, decisions or quotas."),
        "describe": ("describe:describe", "Show everything about one pod, node or card."),
        "top": ("top:top", "Show granted and used memory and cores of cards, nodes or pods."),
        "who": ("named:who", "Show who holds cards, now or in the past."),
        "history": ("history:history", "List the state changes of a pod, a node or a card."),
        "usage": (
            "usage:usage",
            "Show used against granted, by namespace or for one pod, node or card.",
        ),
        "showback": (
            "showback:showback",
            "Show card-hours and their cost by namespace, and the time that no one held.",
        ),
        "sql": ("query:sql", "Run a named question, list them, or query the ledger in SQL."),
        "open": ("describe:open_page", "Print the address of a page and open it in a browser."),
    },
    "Explain": {
        "explain": ("answers:explain", "Explain why a pod waits, or why it is where it is."),
        "pending": ("named:pending", "List pods that wait, with the reason and their place."),
        "trace": ("trace:trace", "Draw the steps of a pod, from admission to its first kernel."),
        "doctor": ("doctor:doctor", "Check each part of the installation and name the next step."),
    },
    "Plan": {
        "capacity": ("capacity:capacity", "Show how many more pods of a given size would fit."),
        "preempt": (
            "preempt:preempt",
            "Show which pods would be preempted for a pod to fit; nothing is evicted.",
        ),
        "scale": ("scale:app", "Show how many nodes the waiting pods need."),
        "kueue": ("kueue:app", "Print what Kueue needs to queue for slices."),
        "lint": ("lint:lint", "Check pods and quotas against admission before creating them."),
        "simulate": (
            "simulate:simulate",
            "Show where pods would be placed, and why, in a dump of a cluster.",
        ),
        "replay": (
            "replay.command:replay",
            "Compare policies on a trace of pods: how much of the cards would be in use.",
        ),
        "dump": (
            "replay.ledger:dump",
            "Write the ledger's pods and cards as JSON lines, for hamictl replay --from.",
        ),
        "vendors": ("vendors:vendors", "List the resources that each vendor's pods may ask for."),
    },
    "Operate": {
        "apply": ("objects:apply", "Create or update the pods and other objects of a manifest."),
        "delete": ("objects:delete", "Delete pods."),
        "drift": (
            "troubles:drift",
            "List differences between ledger, pods and nodes, and whether they are repaired.",
        ),
        "dead-letters": (
            "troubles:dead_letters",
            "List messages that no service could handle, or redeliver one.",
        ),
        "adopt": ("adopt:adopt", "Take over the running pods of HAMi; no pod is restarted."),
        "db": ("database:app", "Upgrade or check the ledger's schema."),
    },
    "Local": {
        "up": ("local:up", "Start everything on this machine and show it; Ctrl-C stops it."),
        "down": ("local:down", "Stop the local system; its data stays in its folder."),
        "completion": ("about:completion", "Print the completion script of a shell."),
        "config": ("config:config", "Show the settings in force and where each comes from."),
        "help": ("about:topics", "Show help on topics common to all commands."),
        "version": ("about:version", "Show the version of this command."),
    },
}
"""Commands by group: name -> module and function in `hamictl.commands`, and its summary."""
COMMANDS = {
    name: LazyCommand(f"hamictl.commands.{place}", summary, group)
    for group, verbs in VERBS.items()
    for name, (place, summary) in verbs.items()
}
RENAMED = {"fits": "capacity"}
"""Old names of commands, which are hidden and work until 0.4.0."""

app = lazy_app(
    COMMANDS,
    "GPU slices on Kubernetes: a local system in one command, and questions to any system.",
    renamed=RENAMED,
    epilog="""
Why does my pod wait? explain POD; which pods wait at all? pending

What would fit now? capacity --gpumem 8Gi; which pods to preempt for a pod? preempt POD

Who is on which card? who; and who was? who NODE --at 'yesterday 14:05'

What does my pod use? usage pod POD; who holds cards and does nothing? usage --idle

What did each team hold? showback

Is everything well? doctor, drift; all questions by name: sql
""",
)


def main() -> None:
    """Entry point of the console script."""
    completion_init()
    run_app("hamictl")


def run_app(prog_name: str) -> None:
    """Run the command of the command line; a closed pipe or an ASCII terminal is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name=prog_name)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Output that remains must not be written, not even at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(ExitCode.READER_LEFT) from None


if __name__ == "__main__":
    main()
