"""The whole service: its use cases, what they share, and its loops."""

from __future__ import annotations

from collections.abc import Mapping

from hamicommon.errors import Unavailable
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.explain import Explainer
from hami_scheduler.api.service import Service
from hami_scheduler.api.simulate import Simulator
from hami_scheduler.bootstrap.gauges import measure
from hami_scheduler.bootstrap.informers import watches_of
from hami_scheduler.bootstrap.loops import bus_loops, watching_loops, writing_loops
from hami_scheduler.bootstrap.outside import Connections
from hami_scheduler.bootstrap.shared import Core, core_of
from hami_scheduler.bus.reports import InventoryReports
from hami_scheduler.extender.bind import Bind, BindRules
from hami_scheduler.extender.filter import Filter
from hami_scheduler.extender.pod_binding import PodBinding
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.reserve import Reservations
from hami_scheduler.settings import Settings


def build(
    settings: Settings,
    vendors: Vendors,
    instruments: SchedulerInstruments,
    outside: Connections,
) -> Service:
    """The whole service."""
    core = core_of(settings, vendors, instruments, outside)
    filtering, binding = _deciding(core, outside)
    inventories = InventoryReports(
        store=outside.inventory,
        view=core.view,
        refused=core.refused,
        instruments=core.instruments,
        on_heard=core.hearing.heard,
        on_freed=core.nudger.capacity_freed,
    )
    watches = watches_of(core, outside, inventories)

    async def readiness() -> Mapping[str, str]:
        missing = watches.missing()
        try:
            await outside.ping()
        except Unavailable as exc:
            missing["postgres"] = str(exc)
        if not core.view.loaded:
            missing["view"] = "the ledger has not been read yet"
        return missing

    return Service(
        aside=outside.aside,
        filtering=filtering,
        binding=binding,
        queries=outside.queries,
        letters=outside.bus.letters,
        explaining=Explainer(
            queries=outside.queries,
            pods=outside.pods,
            vendors=vendors,
            scheduler_name=settings.scheduler_name,
            recorder=core.recorder,
            new_view=lambda: ClusterView(vendors.rules),
        ),
        simulating=Simulator(view=core.view, vendors=vendors, defaults=core.defaults),
        adopting=Adopter(
            store=outside.store,
            ledger=outside.store,
            pods=outside.pods,
            witness=outside.witness,
            grants=outside.grants,
            view=core.view,
            announcer=core.announcer,
            instruments=core.instruments,
            vendors=vendors,
            known_pods=watches.pods.by_uid,
            synced=lambda: not watches.missing(),
            request_of=core.request_of,
        ),
        access=outside.access,
        instruments=core.instruments,
        readiness=readiness,
        measure=lambda: measure(core, outside),
        loops=(
            *writing_loops(core, outside),
            *watching_loops(core, outside, watches),
            *bus_loops(core, outside, inventories, watches),
        ),
    )


def _deciding(core: Core, outside: Connections) -> tuple[Filter, Bind]:
    reserving = Reservations(
        view=core.view,
        store=outside.store,
        pods=outside.pods,
        vendors=core.vendors,
        defaults=core.defaults,
        reservation_s=core.settings.reservation_s,
        recorder=core.recorder,
        instruments=core.instruments,
    )
    filtering = Filter(
        view=core.view,
        reserving=reserving,
        reserve=core.settings.allocate_at == "filter",
        vendors=core.vendors,
        defaults=core.defaults,
        announcer=core.announcer,
        recorder=core.recorder,
        waiting=core.waiting,
        instruments=core.instruments,
        silent=lambda: core.hearing.silent,
        lines=core.lines,
    )
    binding = Bind(
        store=outside.store,
        lock=outside.lock,
        mirrored=core.mirrored,
        pod=PodBinding(outside.pods, sign=outside.sign),
        grants=outside.grants,
        releasing=core.releasing,
        placing=reserving.on_node,
        announcer=core.announcer,
        aside=outside.aside,
        instruments=core.instruments,
        on_unanswered=core.hearing.unanswered,
        lines=core.lines,
        rules=BindRules(timeout_s=core.settings.bind_timeout_s),
    )
    return filtering, binding
