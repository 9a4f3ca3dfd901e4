"""`hamictl dump`: the ledger's pods and cards as JSON lines, and what a replay reads of them."""

from __future__ import annotations

from typing import Annotated

import typer
from hamicommon import device_config as deviceconfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.registry import Vendors
from hamireplay.history import PodHistory, nodes_with_cards, read_history, written
from hamireplay.openb import read_nodes
from hamireplay.trace import TraceNode

from hamictl.commands.replay.ledger import history_lines
from hamictl.commands.replay.options import seconds_of
from hamictl.commands.runner import run, spoken_errors
from hamictl.input_file import read_text

LEDGER, LIVE = "ledger", "live"
"""In place of a file: the ledger itself, and the cards that it has now."""

Since = Annotated[str, typer.Option("--since", help="how far back, such as 30d")]


def dump(since: Since = "30d") -> None:
    """Write the ledger's pods and cards as JSON lines, for hamictl replay --from."""
    with spoken_errors():
        length_s = seconds_of(since, "--since")
    for line in written(run(history_lines(length_s))):
        print(line)  # noqa: T201 (this is the user's file)


def history_of(source: str, since: str) -> PodHistory:
    """Read the history of a dump, or of the ledger.

    Raises: InvalidRequest, Unavailable.
    """
    vendors = Vendors.from_config(deviceconfig.load(None), enable_ascend=True, enable_iluvatar=True)
    if source == LEDGER:
        lines = run(history_lines(seconds_of(since or "30d", "--since")))
        return read_history("\n".join(written(lines)), LEDGER, vendors.rules)
    if since:
        raise InvalidRequest("--since is of use only with --from ledger: a dump has its own period")
    return read_history(read_text(source), source, vendors.rules)


def nodes_of(source: str) -> list[TraceNode]:
    """Read the nodes of a CSV, or those of the ledger.

    Raises: InvalidRequest, Unavailable.
    """
    if source != LIVE:
        return read_nodes(read_text(source), nodes_file=source)
    return nodes_with_cards(run(history_lines(1.0)), LEDGER)
