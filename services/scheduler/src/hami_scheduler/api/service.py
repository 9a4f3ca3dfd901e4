"""The use cases of this service, wired by `bootstrap.py` and called by the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hami_scheduler.adoption.adopt import Adopting
from hami_scheduler.api.explain import Explaining
from hami_scheduler.api.operator import Letters
from hami_scheduler.api.simulate import Simulating
from hami_scheduler.deferred import Aside
from hami_scheduler.extender.bind import Binding
from hami_scheduler.extender.filter import Filtering
from hami_scheduler.metrics import Instruments
from hami_scheduler.ports.access import Access
from hami_scheduler.ports.queries import Queries

Loop = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that the outside can ask for."""

    aside: Aside
    """What waits while decisions run; whoever asks for one says so there."""
    filtering: Filtering
    binding: Binding
    queries: Queries
    letters: Letters
    explaining: Explaining
    simulating: Simulating
    adopting: Adopting
    access: Access | None
    """Who may ask on the operators' port; None: it is not served."""
    instruments: Instruments
    readiness: Callable[[], Awaitable[Mapping[str, str]]]
    """What is not ready, with the reason; empty when all is."""
    measure: Callable[[], Awaitable[None]]
    """Brings the gauges up to date."""
    loops: Sequence[tuple[str, Loop]]
    """Background work that must run while the service is up, by name."""
