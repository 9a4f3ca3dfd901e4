"""Which part behind the figures is away, since when, and what holds all the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hami_metrics.pages.domain.cluster import PageCluster, silent

GRACE = timedelta(seconds=3)
"""A part that is away for less is restarting."""
HANGS_AFTER = timedelta(seconds=10)
"""A scheduler looks into the ledger every second, whatever there is to do."""
SILENT_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One line above a page."""

    part: str
    """`ledger`, `scheduler`, `events` or `agents`."""
    since: datetime | None
    """None: longer than we look."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Since when each part is away; None: it is there, or nobody knows."""

    ledger: datetime | None = None
    scheduler: datetime | None = None
    scheduler_hangs: datetime | None = None
    """Since when all schedulers are connected and ask nothing."""
    events: datetime | None = None


def notices(state: PageCluster | None, away: Away, now: datetime) -> tuple[Notice, ...]:
    """The most serious first; none for a moment of the past, which no part can change."""
    if state is None or state.past:
        return ()
    found = []
    if away.ledger is not None:
        found.append(
            Notice(
                part="ledger",
                since=away.ledger,
                text=f"Ledger unreachable since {_clock(away.ledger)}. Shown: state of"
                f" {_moment(state.taken_at)}. Running pods are not affected.",
            )
        )
    elif away.scheduler is not None and now - away.scheduler >= GRACE:
        # What only its answers show is as unknown as they are.
        found.append(
            Notice(
                part="scheduler",
                since=away.scheduler,
                text="No scheduler is connected to the ledger (noticed"
                f" {_clock(away.scheduler)}). Grants are shown as it left them. Running pods are"
                " not affected, new ones wait.",
            )
        )
    elif away.scheduler_hangs is not None:
        found.append(
            Notice(
                part="scheduler",
                since=away.scheduler_hangs,
                text="The scheduler is connected to the ledger and has done nothing since"
                f" {_clock(away.scheduler_hangs)}: it hangs, or was stopped. Grants are shown as it"
                " left them. Running pods are not affected, new ones wait.",
            )
        )
    if away.events is not None and now - away.events >= GRACE:
        measured = max((use.at for use in state.use.values()), default=None)
        until = "was never measured" if measured is None else f"is of {_moment(measured)}"
        found.append(
            Notice(
                part="events",
                since=away.events,
                text=f"NATS unreachable (noticed {_clock(away.events)}). Grants are up to date; use"
                f" {until} or soon after, and newer reports are taken in when it is back.",
            )
        )
    found.extend(_agents(state, now))
    return tuple(found)


def hanging_since(used_at: datetime | None, now: datetime) -> datetime | None:
    """The moment since which schedulers hang whose connections were used last at `used_at`."""
    return used_at if used_at is not None and now - used_at > HANGS_AFTER else None


def _agents(state: PageCluster, now: datetime) -> Iterable[Notice]:
    quiet = [node for node in state.nodes.values() if silent(node, now)]
    if not quiet:
        return
    quiet.sort(key=lambda node: (node.heard_at is not None, node.heard_at, node.name))
    named = ", ".join(
        f"{node.name} (heard {_moment(node.heard_at)})" if node.heard_at else f"{node.name} (never)"
        for node in quiet[:SILENT_NAMED]
    )
    more = len(quiet) - SILENT_NAMED
    rest = f" and {more} more" if more > 0 else ""
    agents = "agent is" if len(quiet) == 1 else "agents are"
    yield Notice(
        part="agents",
        since=quiet[0].heard_at,
        text=f"{len(quiet)} {agents} silent: {named}{rest}. Their cards count as unknown; grants"
        " there stay, and pods go on.",
    )


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
