"""The gauges and totals that are read when somebody asks for the metrics."""

from __future__ import annotations

from hamicommon.errors import Conflict, Unavailable

from hami_scheduler.activity import Activity
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.reconcile.fitting_pods import WaitingFigures


async def measure(
    core: Core, connections: Connections, fitting: WaitingFigures, activity: Activity
) -> None:
    """Sets them; what can't be known now is NaN, never 0."""
    found = core.instruments
    found.active.set(activity.is_active)
    found.view_age.set(core.state.age_s)
    found.decisions_dropped.set(core.recorder.dropped)
    found.decisions_without_cards.set(core.recorder.dropped_moments)
    found.decisions_waiting.set(core.recorder.waiting)
    found.events_dropped.set(connections.events.dropped)
    found.background_dropped.set(connections.background.dropped)
    found.outbox_published.set(connections.relay.published)
    found.outbox_parked.set(connections.relay.parked)
    found.dead_letters.set(connections.bus.dead_letters)
    found.stream_problems.set(len(connections.bus.streams.problems))
    found.silent_agents.set(len(core.liveness.silent))
    try:
        found.dead_letters_kept.set(await connections.bus.letters.kept())
    except Unavailable:
        found.dead_letters_kept.set(float("nan"))
    try:
        rows, oldest_at = await connections.queries.outbox_lag()
    except Unavailable:
        rows, oldest_at = float("nan"), None
    found.outbox_rows.set(rows)
    found.outbox_oldest.set(oldest_at)
    found.pending_oldest.clear()
    if not activity.is_active:
        return  # the active replica knows which pods wait
    try:
        oldest = await fitting.oldest()
    except (Conflict, Unavailable):
        oldest = {}
    for (reason, fits), at in oldest.items():
        found.pending_oldest.labels(reason, fits.value).set(at)
