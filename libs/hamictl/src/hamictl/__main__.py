"""The `hamictl` command: the names of its commands, and where each one lives."""

from __future__ import annotations

import io
import os
import sys

from typer.completion import completion_init  # type: ignore[attr-defined] # its own use of it is the same

from hamictl.exit_codes import ExitCode
from hamictl.verbs.lazy import LazyCommand, lazy_app

COMMANDS = {
    "up": LazyCommand(
        "hamictl.commands.local:up",
        "Start everything on this machine and show it; Ctrl-C stops it again.",
    ),
    "down": LazyCommand(
        "hamictl.commands.local:down", "Stop the local system; its data stays in its folder."
    ),
    "apply": LazyCommand(
        "hamictl.commands.objects:apply",
        "Create pods (of workload kinds: the pods of their template), or update existing ones.",
    ),
    "get": LazyCommand(
        "hamictl.commands.get:get",
        "Show nodes, cards, pods, who holds which slice, decisions, or quotas.",
    ),
    "describe": LazyCommand(
        "hamictl.commands.describe:describe",
        "Show all that is known of a pod, a node or a card.",
    ),
    "open": LazyCommand(
        "hamictl.commands.describe:open_page",
        "Print the address of a page, and open it where there is a browser.",
    ),
    "doctor": LazyCommand(
        "hamictl.commands.doctor:doctor",
        "Show what is missing of the installation, part by part.",
    ),
    "top": LazyCommand(
        "hamictl.commands.top:top",
        "Show what is granted and used of each card, live; or of each node or pod, once.",
    ),
    "who": LazyCommand(
        "hamictl.commands.named:who",
        "Show who holds which card, or who held it then: of all cards, a node, or one card.",
    ),
    "pending": LazyCommand(
        "hamictl.commands.named:pending",
        "Show which pods wait, for what, since when, and who is before them.",
    ),
    "fits": LazyCommand(
        "hamictl.commands.fits:fits", "Count how many more pods of a size fit now."
    ),
    "delete": LazyCommand("hamictl.commands.objects:delete", "Delete pods."),
    "explain": LazyCommand(
        "hamictl.commands.answers:explain", "Explain why a pod is where it is, or why it waits."
    ),
    "history": LazyCommand(
        "hamictl.commands.history:history",
        "Show every state that the slices of a pod, a node or a card went through.",
    ),
    "trace": LazyCommand(
        "hamictl.commands.trace:trace",
        "Draw the steps of a pod, from admission to its first kernel.",
    ),
    "usage": LazyCommand(
        "hamictl.commands.usage:usage",
        "Show what was used of what was granted: of namespaces, a pod, a node or a card.",
    ),
    "showback": LazyCommand(
        "hamictl.commands.showback:showback",
        "Show what each namespace held of the cards' time, what became of the rest, and the cost.",
    ),
    "sql": LazyCommand(
        "hamictl.commands.query:sql",
        "Ask a named question (without a name: which there are), or the ledger itself in SQL.",
    ),
    "drift": LazyCommand(
        "hamictl.commands.troubles:drift",
        "Show where ledger, pods and nodes differed, and whether it was repaired.",
    ),
    "dead-letters": LazyCommand(
        "hamictl.commands.troubles:dead_letters",
        "Show messages that no service could handle, with the reason; or send one again.",
    ),
    "simulate": LazyCommand(
        "hamictl.commands.simulate:simulate",
        "Show where pods would go and why, on a dump of a cluster; nothing is changed anywhere.",
    ),
    "replay": LazyCommand(
        "hamictl.commands.replay.command:replay",
        "Show how much of the cards a trace would get under each policy; nothing is changed.",
    ),
    "dump": LazyCommand(
        "hamictl.commands.replay.ledger:dump",
        "Write the ledger's pods and cards as JSON lines, for hamictl replay --from.",
    ),
    "lint": LazyCommand(
        "hamictl.commands.lint:lint",
        "Show what admission would answer: refusals, warnings, what would be filled in.",
    ),
    "vendors": LazyCommand(
        "hamictl.commands.vendors:vendors", "Show which resources of which vendors are served."
    ),
    "adopt": LazyCommand(
        "hamictl.commands.adopt:adopt",
        "Take over the pods that HAMi started; nothing is restarted, and it may be repeated.",
    ),
    "db": LazyCommand("hamictl.commands.database:app", "The ledger's schema."),
    "completion": LazyCommand(
        "hamictl.commands.about:completion",
        "Print the script that completes verbs, options and names in a shell.",
    ),
    "config": LazyCommand(
        "hamictl.commands.config:config",
        "Show the settings in force and where each comes from: environment, hamictl.toml, default.",
    ),
    "help": LazyCommand(
        "hamictl.commands.about:topics",
        "Show what is true of all verbs: exit-codes, times, output.",
    ),
    "version": LazyCommand("hamictl.commands.about:version", "Show the version of this command."),
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
