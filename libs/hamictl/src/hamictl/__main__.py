"""The `hamictl` command: the names of its commands, and where each one lives."""

from __future__ import annotations

import io
import os
import sys

from typer.completion import completion_init  # type: ignore[attr-defined] # its own use of it is the same

from hamictl.exit_codes import ExitCode
from hamictl.verbs.lazy import LazyCommand, lazy_app

VERBS = {
    "up": ("local:up", "Start everything on this machine and show it; Ctrl-C stops it again."),
    "down": ("local:down", "Stop the local system; its data stays in its folder."),
    "apply": (
        "objects:apply",
        "Create pods (of workload kinds: the pods of their template), or update existing ones.",
    ),
    "get": ("get:get", "Show nodes, cards, pods, who holds which slice, decisions, or quotas."),
    "describe": ("describe:describe", "Show all that is known of a pod, a node or a card."),
    "open": (
        "describe:open_page",
        "Print the address of a page, and open it where there is a browser.",
    ),
    "doctor": ("doctor:doctor", "Show what is missing of the installation, part by part."),
    "top": (
        "top:top",
        "Show what is granted and used of each card, live; or of each node or pod, once.",
    ),
    "who": (
        "named:who",
        "Show who holds which card, or who held it then: of all cards, a node, or one card.",
    ),
    "pending": (
        "named:pending",
        "Show which pods wait, for what, since when, and who is before them.",
    ),
    "fits": ("fits:fits", "Count how many more pods of a size fit now."),
    "preempt": (
        "preempt:preempt",
        "Show which pods would have to end for a pod to fit; nothing ends.",
    ),
    "delete": ("objects:delete", "Delete pods."),
    "explain": ("answers:explain", "Explain why a pod is where it is, or why it waits."),
    "history": (
        "history:history",
        "Show every state that the slices of a pod, a node or a card went through.",
    ),
    "trace": ("trace:trace", "Draw the steps of a pod, from admission to its first kernel."),
    "usage": (
        "usage:usage",
        "Show what was used of what was granted: of namespaces, a pod, a node or a card.",
    ),
    "showback": (
        "showback:showback",
        "Show what each namespace held of the cards' time, what became of the rest, and the cost.",
    ),
    "sql": (
        "query:sql",
        "Ask a named question (without a name: which there are), or the ledger itself in SQL.",
    ),
    "drift": (
        "troubles:drift",
        "Show where ledger, pods and nodes differed, and whether it was repaired.",
    ),
    "dead-letters": (
        "troubles:dead_letters",
        "Show messages that no service could handle, with the reason; or send one again.",
    ),
    "simulate": (
        "simulate:simulate",
        "Show where pods would go and why, on a dump of a cluster; nothing is changed anywhere.",
    ),
    "replay": (
        "replay.command:replay",
        "Show how much of the cards a trace would get under each policy; nothing is changed.",
    ),
    "dump": (
        "replay.ledger:dump",
        "Write the ledger's pods and cards as JSON lines, for hamictl replay --from.",
    ),
    "lint": (
        "lint:lint",
        "Show what admission would answer: refusals, warnings, what would be filled in.",
    ),
    "vendors": ("vendors:vendors", "Show which resources of which vendors are served."),
    "adopt": (
        "adopt:adopt",
        "Take over the pods that HAMi started; nothing is restarted, and it may be repeated.",
    ),
    "db": ("database:app", "The ledger's schema."),
    "completion": (
        "about:completion",
        "Print the script that completes verbs, options and names in a shell.",
    ),
    "config": (
        "config:config",
        "Show the settings in force and where each comes from: environment, hamictl.toml, default.",
    ),
    "help": ("about:topics", "Show what is true of all verbs: exit-codes, times, output."),
    "version": ("about:version", "Show the version of this command."),
}
"""Name -> where it lives in `hamictl.commands`, and the first line of its docstring."""
COMMANDS = {
    name: LazyCommand(f"hamictl.commands.{place}", summary)
    for name, (place, summary) in VERBS.items()
}

app = lazy_app(
    COMMANDS,
    "GPU slices on Kubernetes: a local system in one command, and questions to any system.",
    epilog="""
Why does my pod wait? explain POD; which pods wait at all? pending

What would fit now? fits --gpumem 8Gi

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
    """Runs the verb that was typed. Who reads our output may leave early, or know ASCII alone."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name=prog_name)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is still to be written has nowhere to go: not even at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(ExitCode.READER_LEFT) from None


if __name__ == "__main__":
    main()
