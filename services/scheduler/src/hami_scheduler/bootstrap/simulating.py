"""Run /v1/simulate, /v1/preempt, plans and /filter-simulation in a separate process.

All but the last read the ledger by a connection of that process. `POST /v1/simulate` answers what
/filter would answer to a pod now; nothing is reserved or written. In: a pod, and optionally Node
objects (and placed pods) to ask in place of the live cluster, or `count`: how many such pods would
fit now. The engine and its answers are those of `hamictl simulate`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from hamicommon import device_config
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.ledger.database import Database, open_database
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.preemption.planner import Preview
from hamicommon.process.computing import ComputeProcess
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.fitting import fitting
from hamicommon.simulation.planner import PodPlan, plan_pod
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hami_scheduler.adapters.postgres.scaling import PostgresScaling
from hami_scheduler.api.preempt import written_plans
from hami_scheduler.extender.filter import simulate_filter
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.ports.ledger import CardReader, Row
from hami_scheduler.preemption.planning import PreemptionQuestion, find_plans
from hami_scheduler.scaling.planning import ScaleAnswer, ScaleQuestion, plan_scaling
from hami_scheduler.settings import Settings

MAX_COUNT = 100_000
"""Maximum number of pods that are counted for one question."""
MAX_ON_A_NODE = 1000
"""Maximum number of pods on one node, more than a kubelet accepts."""


@dataclass(eq=False, kw_only=True)
class ClusterSimulator:
    """Use case of /v1/simulate.

    `live`: reads the ledger. Raises: Unavailable.
    """

    live: Callable[[], ClusterView]
    vendors: Vendors
    defaults: Policy
    closed: Mapping[str, frozenset[NodeName]] = field(default_factory=dict)
    """Nodes that take no pod now, by reason."""

    def answer(self, text: bytes) -> bytes:
        """Return the answer in the form of `hamictl simulate -o json`.

        Raises: InvalidRequest when the body is malformed; Unavailable when the ledger is
        unavailable.
        """
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            raise InvalidRequest(f"the body is not JSON: {exc}") from exc
        try:
            return orjson.dumps(self._answer(body))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            # Annotations may hold any JSON where a device plugin would have written a known form.
            raise InvalidRequest(f"an object is malformed ({type(exc).__name__}: {exc})") from exc

    def _answer(self, body: object) -> Json:
        if not isinstance(body, dict):
            raise InvalidRequest('expected {"pod": Pod}, with "nodes": [Node...] if needed')
        pod = body.get("pod")
        if not isinstance(pod, dict):
            raise InvalidRequest("pod: expected a Pod object")
        if body.get("count") is not None:
            return self._fitting(pod, body["count"])
        if body.get("nodes") is None:
            check_pod(pod)
            view = self.live()
            return self._ask(pod, Cluster(view=view, nodes=tuple(sorted(view.nodes)))).as_json()
        nodes, pods = _objects(body, "nodes"), _objects(body, "pods")
        cluster = read_cluster(nodes, pods, self.vendors, asking=[pod])
        check_pod(pod)
        return self._ask(pod, cluster).as_json() | {"problems": list(cluster.problems)}

    def _fitting(self, pod: Json, most: object) -> Json:
        """Return how many more such pods fit now per node, up to `most`.

        Closed nodes are not filled; `closed` has their number, by the reason.
        """
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_COUNT:
            raise InvalidRequest(f"count: expected a number from 1 to {MAX_COUNT}")
        nodes: dict[NodeName, int] = {}
        total = 0
        view = self.live()
        found = fitting(
            pod,
            view,
            self.vendors,
            now=datetime.now(UTC),
            most=min(most, MAX_ON_A_NODE),
            defaults=self.defaults,
            nodes=frozenset(view.nodes).difference(*self.closed.values()),
        )
        for each in found:
            total += each.pods
            if each.pods:
                nodes[each.node] = each.pods
            if total >= most:
                break
        closed = {why: len(nodes) for why, nodes in self.closed.items() if nodes}
        answer = {"count": min(total, most), "more": total >= most, "nodes": nodes}
        return answer | {"closed": closed}

    def _ask(self, pod: Json, cluster: Cluster) -> PodPlan:
        return plan_pod(pod, cluster, self.vendors, now=datetime.now(UTC), defaults=self.defaults)


def _objects(body: dict[str, Any], key: str) -> Sequence[Json]:
    items = body.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest(f"{key}: expected a list of Kubernetes objects")
    return items


T = TypeVar("T")

NAME = "hami-scheduler-simulate"
# `hamictl` waits a minute; the largest body takes a few seconds.
DEADLINE_S = 30.0
MAX_WAITING = 8
WARM_INTERVAL_S = 60.0
"""Interval of calls that keep the process from ending as idle."""


class Simulations:
    """Answer questions in the other process, one after the other."""

    def __init__(self, settings: Settings, defaults: Policy, closed: ClosedNodes) -> None:
        self._settings = settings
        self._defaults = defaults
        self._closed = closed
        self._process = ComputeProcess(deadline_s=DEADLINE_S, max_waiting=MAX_WAITING)

    async def answer(self, body: bytes) -> bytes:
        """Answer the body. Raises: InvalidRequest, Unavailable."""
        return await self._process.call(
            simulate, body, self._settings, self._defaults, self._closed.by_reason()
        )

    async def preempt(self, question: PreemptionQuestion) -> bytes:
        """Answer /v1/preempt. Raises: InvalidRequest, Unavailable."""
        return await self._process.call(preempt, question, self._settings, self._defaults)

    async def plan(self, question: PreemptionQuestion) -> Preview:
        """Search plans. Raises: InvalidRequest, Unavailable."""
        return await self._process.call(plan, question, self._settings, self._defaults)

    async def filter(self, body: bytes) -> bytes:
        """Answer /filter-simulation. Raises: InvalidRequest, Unavailable."""
        return await self._process.call(filter_given, body, self._settings, self._defaults)

    async def warm_up(self) -> None:
        """Start the process before a plan needs it. Raises: Unavailable."""
        await self._process.call(prepare, self._settings)

    async def scale(self, question: ScaleQuestion) -> ScaleAnswer:
        """Plan nodes. Raises: InvalidRequest, Unavailable."""
        return await self._process.call(scale, question, self._settings)

    async def run(self) -> None:
        """End the process when this task is cancelled."""
        await self._process.run()


def simulate(
    body: bytes,
    settings: Settings,
    defaults: Policy,
    closed: Mapping[str, frozenset[NodeName]],
) -> bytes:
    """Answer the body, in the other process. Raises: InvalidRequest, Unavailable."""
    simulator = ClusterSimulator(
        live=lambda: live_view(settings),
        vendors=vendors_of(settings),
        defaults=defaults,
        closed=closed,
    )
    return simulator.answer(body)


def preempt(question: PreemptionQuestion, settings: Settings, defaults: Policy) -> bytes:
    """Answer /v1/preempt, in the other process. Raises: InvalidRequest, Unavailable."""
    view, rows = _read_ledger(settings, partial(_holders, question))
    return written_plans(question, view, rows, vendors_of(settings), defaults)


def plan(question: PreemptionQuestion, settings: Settings, defaults: Policy) -> Preview:
    """Search plans, in the other process. Raises: InvalidRequest, Unavailable."""
    view, rows = _read_ledger(settings, partial(_holders, question))
    return find_plans(question, view, rows, vendors_of(settings), defaults)


def prepare(settings: Settings) -> None:
    """Read the settings' file, in the other process. Raises: InvalidRequest."""
    vendors_of(settings)


async def _holders(
    question: PreemptionQuestion, database: Database, view: ClusterView
) -> list[Row]:
    nodes = question.candidates(view.nodes)
    return await PostgresQueries(database).held_at(datetime.now(UTC), nodes, "")


def filter_given(body: bytes, settings: Settings, defaults: Policy) -> bytes:
    """Answer /filter-simulation, in the other process. Raises: InvalidRequest."""
    vendors = vendors_of(settings)
    guard = Guard.of(vendors, TamperingPolicy.of(settings.admission))
    return simulate_filter(body, vendors, guard, defaults).to_json()


def scale(question: ScaleQuestion, settings: Settings) -> ScaleAnswer:
    """Plan nodes, in the other process. Raises: InvalidRequest, Unavailable."""
    pods = [uid for uid, _ in question.pods]
    # After the cards: a pod that has some by then is not planned once more.
    view, held = _read_ledger(settings, lambda found, _: PostgresScaling(found).find_holders(pods))
    return plan_scaling(question, view, held, vendors_of(settings))


def live_view(settings: Settings) -> ClusterView:
    """Read the ledger's cards. Raises: Unavailable."""
    return _read_ledger(settings, lambda found, _: found.ping())[0]


def _read_ledger(
    settings: Settings, also: Callable[[Database, ClusterView], Awaitable[T]]
) -> tuple[ClusterView, T]:
    """Read the ledger's cards, and then `also` something. Raises: Unavailable."""

    async def read() -> tuple[ClusterView, T]:
        async with open_database(settings.postgres, application=NAME) as database:
            reader = PostgresInventory(database, on_commit=lambda: None)
            view = await read_view(reader, vendors_of(settings))
            return view, await also(database, view)

    return asyncio.run(read())


async def read_view(reader: CardReader, vendors: Vendors) -> ClusterView:
    """Return the ledger's cards as a view for the engine. Raises: Unavailable."""
    view = ClusterView(vendors.rules)
    nodes: defaultdict[NodeName, list[CardState]] = defaultdict(list)
    for card in await reader.cards():
        nodes[card.node].append(CardState(card.usage, card.version))
    pair_scores = await reader.pair_scores(list(nodes))
    for node, cards in nodes.items():
        view.set_node(node, cards, pair_scores=pair_scores.get(node))
    return view


def vendors_of(settings: Settings) -> Vendors:
    """Return the vendors of the settings. Raises: InvalidRequest if the file is unusable."""
    return _vendors_of(
        settings.device_config_file, settings.enable_ascend, settings.enable_iluvatar
    )


@lru_cache(maxsize=1)
def _vendors_of(devices: Path | None, ascend: bool, iluvatar: bool) -> Vendors:
    return Vendors.from_config(
        device_config.load(devices), enable_ascend=ascend, enable_iluvatar=iluvatar
    )
