"""Puts together what becomes of limits that nodes check from outside."""

from __future__ import annotations

from hamicommon.bus.client import Subscription
from hamicommon.events import LIMITS_STREAM
from hamicommon.process.periodic import every

from hami_scheduler.api.service import Loop
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.informers import Watches
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.enforcement.checks import CLOSE_EVERY_S, LimitChecks
from hami_scheduler.enforcement.evict import LimitEvictor
from hami_scheduler.enforcement.eviction_rules import EvictionPolicy
from hami_scheduler.line_budget import LineBudget
from hami_scheduler.ports.cluster import PodEnder
from hami_scheduler.ports.ledger import LimitHistory


def limit_loops(
    core: Core, connections: Connections, watches: Watches
) -> tuple[tuple[str, Loop], ...]:
    """The consumer of what nodes find, and the end of what they report no more."""
    if connections.limits is None:
        return ()
    store = watches.pod_informer.store
    checks = LimitChecks(
        history=connections.limits,
        pod_named=lambda namespace, name: store.get((namespace, name)),
        announcer=core.announcer,
        instruments=core.instruments,
        lines=LineBudget(),
        evictor=_evictor(core, connections.limits, connections.ending),
    )
    source = Subscription(
        stream=LIMITS_STREAM, subject="hami.limits.v1.*", consumer="scheduler-limits"
    )
    return (
        ("limits", lambda: connections.bus.consume(source, checks.handle)),
        ("silent-limits", lambda: every(CLOSE_EVERY_S, checks.close_silent, name="silent-limits")),
    )


def _evictor(core: Core, history: LimitHistory, ending: PodEnder | None) -> LimitEvictor | None:
    if ending is None:
        return None
    settings = core.settings
    return LimitEvictor(
        history=history,
        pods=ending,
        announcer=core.announcer,
        instruments=core.instruments,
        policy=EvictionPolicy(
            after_s=settings.evict_after_s, per_minute=settings.evictions_per_minute
        ),
    )
