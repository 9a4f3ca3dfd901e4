"""Options that several verbs share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from hamicommon.errors import InvalidRequest

from hamictl.output.formats import OutputFormat, output_format
from hamictl.output.presentation import presentation
from hamictl.verbs import moments

Answered = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        parser=output_format,
        metavar="FORM",
        envvar="HAMICTL_OUTPUT",
        help="table, wide, json, yaml, csv, name or jsonpath=TEMPLATE",
    ),
]
At = Annotated[
    str, typer.Option("--at", metavar="TIME", help="as it was then (`hamictl help times`)")
]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="not before, as in 2h")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="not after")]
InNamespace = Annotated[
    str, typer.Option("--namespace", "-n", help="of this namespace; without it of all")
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="of all namespaces, as without -n")
]
Selector = Annotated[
    str, typer.Option("--selector", "-l", metavar="LABELS", help="as in app=a,tier!=b")
]


_AHEAD = timedelta(minutes=1)
"""So far this machine's clock may differ from that of who wrote the moment."""


def moment_of(text: str, option: str) -> datetime | None:
    """The value of `--at` or `--until`; None where it was not given. `2m` is two minutes ago.

    Raises: BadParameter.
    """
    if not text:
        return None
    now = datetime.now(UTC)
    try:
        found = moments.since(text, now=now, utc=presentation().utc)
    except InvalidRequest as exc:
        raise typer.BadParameter(str(exc), param_hint=option) from None
    if option == "--at" and found > now + _AHEAD:
        raise typer.BadParameter(
            f"{text!r} is in the future: {found:%F %T}Z; leave it out for now", param_hint=option
        )
    return found


def since_of(text: str) -> datetime | None:
    """The value of `--since`; None where it was not given. Raises: BadParameter."""
    if not text:
        return None
    try:
        return moments.since(text, now=datetime.now(UTC), utc=presentation().utc)
    except InvalidRequest as exc:
        raise typer.BadParameter(str(exc), param_hint="--since") from None
