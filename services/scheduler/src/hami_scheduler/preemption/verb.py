"""/preempt: kube-scheduler's preemption, corrected by cards before it evicts pods.

kube-scheduler calls it when a pod lacks a resource that kube-scheduler counts, such as CPU, and has
chosen victims only by that. Input: nodes with their victims. Output: the nodes where the pod's
slices fit too without those; with `may_add` also nodes where ending a few more pods is enough. The
others are left out, so no pod is evicted in vain. An empty answer evicts nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.preemption.holders import budget_room
from hamicommon.preemption.holdings import Holder, Holdings
from hamicommon.preemption.planner import preview
from hamicommon.vendors.pod_request import PodRequests

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.preemption.planning import PreemptionPlans, delay_s

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

logger = logging.getLogger(__name__)

NODE_BUDGET_S = 0.1
"""Time limit of the search on one node."""
CALL_BUDGET_S = 2.0
"""Time limit of the search in a call; nodes not searched by then are left out.

Until the answer kube-scheduler decides on no other pod.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptArgs:
    """Arguments of /preempt."""

    pod: Json
    nodes: Mapping[NodeName, tuple[tuple[PodUid, ...], int]]
    """Uids of kube-scheduler's victims, and number of violated PodDisruptionBudgets, by node."""


@dataclass(eq=False, kw_only=True)
class PreemptVerb:
    """Answers kube-scheduler's calls of /preempt."""

    plans: PreemptionPlans
    queries: PostgresQueries
    state: ClusterState
    requests: PodRequests
    may_add: bool
    is_placeholder: Callable[[PodUid], bool]
    """Whether the pod holds a new node until its cards are known: no slice ends it."""

    async def answer(self, body: bytes) -> bytes:
        """Answer /preempt. Raises: InvalidRequest, Forbidden, Unavailable."""
        args = parse_preempt_args(body)
        request = self.requests.of(args.pod)
        if not request.wants_devices:
            return _encode_answer({node: uids for node, (uids, _) in args.nodes.items()}, args)
        question = await self.plans.question(args.pod, frozenset(args.nodes))
        nodes = question.candidates(args.nodes)
        rows = await self.queries.held_at(datetime.now(UTC), nodes, "")
        holders = await asyncio.to_thread(question.holders, rows)
        priority, budgets = question.wish.priority, budget_room(question.budgets)
        may_add = self.may_add and _has_waited(args.pod)
        found = {}
        until_s = time.monotonic() + CALL_BUDGET_S
        for node, (given, _) in args.nodes.items():
            await asyncio.sleep(0)  # reports and operators have their turn
            if any(map(self.is_placeholder, given)):
                continue
            if node in nodes and time.monotonic() < until_s:
                mine = list(_of_node(holders, node, given))
                victims = self._victims(request, priority, node, given, mine, budgets, may_add)
                if victims:
                    found[node] = victims
        left_out = sorted(set(args.nodes) - set(found))
        extra = {"pod_uid": request.uid, "left": sorted(found)[:20], "left_out": left_out[:20]}
        logger.info("Answered kube-scheduler's preemption", extra=extra)
        return _encode_answer(found, args)

    def _victims(
        self,
        request: PodRequest,
        priority: int,
        node: NodeName,
        given: tuple[PodUid, ...],
        holders: Sequence[Holder],
        budgets: Mapping[str, int],
        may_add: bool,
    ) -> tuple[PodUid, ...]:
        """Return the victims whose eviction lets the pod fit on the node.

        Empty if there are none.
        """
        found = preview(
            request,
            priority,
            Holdings(holders, self.state.cluster, now=datetime.now(UTC), budgets=budgets),
            candidates=(node,),
            budget_s=NODE_BUDGET_S,
        )
        if found.fits_now:
            return given
        if not found.plans:
            return ()
        added = tuple(each.uid for each in found.plans[0].victims)
        return (*given, *added) if may_add or not added else ()


def _has_waited(pod: Json) -> bool:
    """Return whether the delay that the pod asks for is over, so that pods may be preempted."""
    wanted_s = delay_s(pod, 0.0)
    if not wanted_s:
        return True
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return (datetime.now(UTC) - created).total_seconds() >= wanted_s


def _of_node(
    holders: Iterable[Holder], node: NodeName, given: tuple[PodUid, ...]
) -> Iterable[Holder]:
    for holder in holders:
        if holder.node != node:
            continue
        if holder.uid in given:
            yield replace(holder, is_ending=True)
        elif holder.is_room:
            # kube-scheduler can end pods of the node only.
            yield replace(holder, shield="that wait for cards which are held for them")
        else:
            yield holder


def parse_preempt_args(body: bytes) -> PreemptArgs:
    """Read the body of /preempt. Raises: InvalidRequest."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"extender preemption args are not JSON: {exc}") from exc
    fields = {key.lower(): item for key, item in value.items()} if isinstance(value, dict) else {}
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        raise InvalidRequest("extender preemption args: Pod is missing")
    # With nodeCacheCapable the victims are uids, otherwise whole pods.
    nodes = fields.get("nodenametometavictims") or fields.get("nodenametovictims") or {}
    try:
        return PreemptArgs(
            pod=pod, nodes={NodeName(node): _victims_of(each or {}) for node, each in nodes.items()}
        )
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise InvalidRequest(f"extender preemption args: victims can't be read: {exc!r}") from exc


def _victims_of(victims: Json) -> tuple[tuple[PodUid, ...], int]:
    fields = {key.lower(): item for key, item in victims.items()}
    uids = []
    for pod in fields.get("pods") or ():
        flat = {key.lower(): item for key, item in pod.items()}
        uids.append(PodUid(flat["uid"] if "uid" in flat else flat["metadata"]["uid"]))
    return tuple(uids), int(fields.get("numpdbviolations") or 0)


def _encode_answer(found: Mapping[NodeName, tuple[PodUid, ...]], args: PreemptArgs) -> bytes:
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in uids],
                    "NumPDBViolations": args.nodes[node][1],
                }
                for node, uids in found.items()
            }
        }
    )
