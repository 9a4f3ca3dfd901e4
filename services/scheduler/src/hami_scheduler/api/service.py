"""The use cases of this service, wired by `bootstrap/` and called by the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hamicommon.access.checks import Access
from hamicommon.bus.dead_letters import DeadLetters

from hami_scheduler.activity import Activity
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.explain import Explainer
from hami_scheduler.api.groups import GroupExplainer
from hami_scheduler.api.preempt import PreemptionPreviews
from hami_scheduler.api.undecided_pods import UndecidedPods
from hami_scheduler.api.v1 import VainSettings
from hami_scheduler.extender.app import ExtenderVerbs
from hami_scheduler.metrics import SchedulerInstruments

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal
    from hami_scheduler.adapters.postgres.queries import PostgresQueries


Loop = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Every request that the operators' API and the command line can make."""

    verbs: ExtenderVerbs
    activity: Activity
    queries: PostgresQueries
    letters: DeadLetters
    explainer: Explainer
    groups: GroupExplainer
    undecided: UndecidedPods
    vain_settings: VainSettings
    simulated: Callable[[bytes], Awaitable[bytes]]
    """Answers the body of /v1/simulate."""
    preemption: PreemptionPreviews
    adopter: Adopter
    access: Access | None
    """Access rules of the operators' port; None: it is not served."""
    journal: PostgresCallJournal | None
    """Journal of calls that change something; None: only the log has them."""
    instruments: SchedulerInstruments
    readiness: Callable[[], Awaitable[Mapping[str, str]]]
    """Parts that are not ready, with the reason; empty if all are."""
    measure: Callable[[], Awaitable[None]]
    """Brings the gauges up to date."""
    loops: Sequence[tuple[str, Loop]]
    """Background work that must run while the service is up, by name."""
