"""Request nodes for pods that fit on no node, by placeholder pods (`HAMI_SCHEDULER_SCALE=on`).

A wish is a row before its placeholder is made, and over before that is deleted, so a scheduler that
becomes active continues from the ledger: a placeholder without its row goes, a row without its
placeholder gets one. With `plan` the rows are kept and nothing is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Literal

from cachetools import TTLCache
from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError
from hamicommon.explain.sentences import count_noun
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.scaling.node_types import NodeType, labels_of

from hami_scheduler.drift import Drift
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.expected_nodes import ExpectedNodes
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.scaling import Failures, KnownType, ScaleWish
from hami_scheduler.scaling.placeholders import (
    LABEL,
    Placeholders,
    host_name_of,
    nodes_before,
    placeholder_name,
)
from hami_scheduler.scaling.planning import ScaleAnswer, ScaleQuestion, ScaleQuestions

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.scaling import PostgresScaling

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
PLAN_INTERVAL_S = 5.0
TYPES_INTERVAL_S = 60.0
"""Interval of reading the types of the existing nodes while no pod waits."""
ASK_AGAIN_S = 10.0
"""Interval of asking why a requested node has not joined yet."""
SEEN_S = 60.0
"""Time for which a pod counts as a placeholder after it was last listed."""
CLOCKS_DIFFER = timedelta(seconds=10)
"""Clock difference allowed: a node created so long before its request may answer it."""
BACK_OFF_S = (300, 600, 1200)
ASKED, NOT_ASKED = "NodeAskedFor", "NoNodeAskedFor"
ARRIVED, GIVEN_UP = "NodeArrived", "NodeGivenUp"
MAX_MESSAGE = 1024
WRONG_TYPE = "node-type"
"""Drift class: a node that joined differs from its type."""
MAX_WISHES = 10_000


@dataclass(eq=False, kw_only=True)
class Scaler:
    """Keeps the requests for nodes (wishes), and creates and deletes their placeholder pods."""

    store: PostgresScaling
    placeholders: Placeholders
    questions: ScaleQuestions
    search: Callable[[ScaleQuestion], Awaitable[ScaleAnswer]]
    state: ClusterState
    pods: Mapping[PodUid, JsonMapping]
    """Pods of the pod watch."""
    nodes: Callable[[], Iterable[Json]]
    """Return the nodes of the node watch."""
    expected: ExpectedNodes
    announcer: Announcer
    drift: Drift
    instruments: SchedulerInstruments
    on_freed: Callable[[], None]
    asks: bool
    """Whether nodes are requested; if not, plans are only shown."""
    timeout_s: float
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Lock of `keep` and of changes by `plan`: neither acts on requests that the other ended."""
    _made: dict[int, Json] = field(default_factory=dict, init=False)
    """Placeholder pod of each request for a node, as last listed."""
    _explained: TTLCache[int, None] = field(init=False)
    _seen: TTLCache[PodUid, None] = field(init=False)
    """Placeholders of the last minute."""
    _idle: frozenset[int] = frozenset()
    """Requests for nodes that the last plan did not need."""
    _is_swept: bool = False
    """Whether the last listing without open requests found no placeholder pod."""
    _types_at: float = float("-inf")

    def __post_init__(self) -> None:
        self._explained = TTLCache(MAX_WISHES, ASK_AGAIN_S)
        self._seen = TTLCache(MAX_WISHES, SEEN_S)

    def is_placeholder(self, uid: PodUid) -> bool:
        """Return whether the pod is a placeholder, or was one until a minute ago."""
        return uid in self._seen

    # Wishes that are open

    async def keep(self) -> None:
        """Continue the open requests for nodes. Raises: Unavailable."""
        async with self._lock:
            wishes = await self.store.open()
            self._show(wishes)
            if not wishes and self._is_swept:
                return
            types = await self.store.types() if wishes else {}
            self.expected.expect(
                (types[wish.type].kind.selector, wish.wanted_at - CLOCKS_DIFFER)
                for wish in wishes
                if self.asks and wish.type in types
            )
            await self._sweep(wishes)
            if not wishes:
                return
            oldest = min(wish.wanted_at for wish in wishes) - CLOCKS_DIFFER
            taken = await self.store.arrived_since(oldest)
            for wish in wishes:
                with self.instruments.bulkhead.item("scaling", wish.type):
                    try:
                        await self._keep(wish, types.get(wish.type), taken)
                    except HamiError as exc:
                        await self._note(wish, str(exc))

    def _show(self, wishes: Sequence[ScaleWish]) -> None:
        gauge = self.instruments.scale_wanted_nodes
        gauge.clear()
        for wish in wishes:
            gauge.labels(wish.type).inc()

    async def _sweep(self, wishes: Sequence[ScaleWish]) -> None:
        """List the placeholder pods, and delete those without an open request."""
        open_ids = {str(wish.id) for wish in wishes} if self.asks else set[str]()
        self._made, others = {}, 0
        for pod in await self.placeholders.all():
            number = labels_of(pod)[LABEL]
            self._seen[PodUid(pod["metadata"]["uid"])] = None
            if number in open_ids and "deletionTimestamp" not in pod["metadata"]:
                self._made[int(number)] = pod
            else:
                others += 1
                await self.placeholders.delete(pod)
        self._is_swept = not wishes and not others

    async def _keep(self, wish: ScaleWish, known: KnownType | None, taken: set[NodeName]) -> None:
        """Continue one request for a node; `taken`: nodes that other requests got."""
        if not self.asks:
            if wish.is_asked:
                await self.store.take_back(wish)
            return
        made = self._made.get(wish.id)
        node = _node_of(made)
        if made is not None and node in taken:
            # It was made before that node came, and is made again for another one.
            del self._made[wish.id]
            await self.placeholders.delete(made)
            return
        if known is not None and made is not None and node is None:
            others = taken.union(filter(None, map(_node_of, self._made.values())))
            node = next(self._new_nodes(known.kind, made, others), None)
        if known is not None and node is not None and self.state.cluster.cards(node):
            taken.add(node)
            await self._arrive(wish, known.kind, node)
        elif wish.age_s >= self.timeout_s:
            await self._give_up(wish, node)
        elif known is None:
            return  # of a file without it, the next plan drops the wish
        elif made is None:
            await self._ask(wish, known.kind)
        elif not wish.is_asked:
            await self._on_asked(wish)
        elif wish.id not in self._explained:
            self._explained[wish.id] = None
            await self._note(wish, await self._why(wish, node))

    def _new_nodes(
        self, kind: NodeType, made: Json, taken: Container[NodeName]
    ) -> Iterator[NodeName]:
        """Yield nodes of the type that joined after the placeholder's creation and have cards."""
        before = nodes_before(made)
        for node in self.nodes():
            name = NodeName(node["metadata"]["name"])
            if (
                name not in taken
                and kind.selector.items() <= labels_of(node).items()
                and host_name_of(node)[1] not in before
                and self.state.cluster.cards(name)
            ):
                yield name

    async def _ask(self, wish: ScaleWish, kind: NodeType) -> None:
        existing = [
            node for node in self.nodes() if kind.selector.items() <= labels_of(node).items()
        ]
        try:
            await self.placeholders.create(wish, kind, existing)
        except Conflict as exc:
            # The one of an earlier wish is being deleted, or a quota has no room for it.
            await self._note(wish, str(exc))
            return
        await self._on_asked(wish)

    async def _on_asked(self, wish: ScaleWish) -> None:
        if await self.store.mark_asked(wish):
            extra = {"type": wish.type, "placeholder": placeholder_name(wish.type, wish.number)}
            logger.info("Asked the autoscaler for a node", extra=extra)

    async def _why(self, wish: ScaleWish, node: NodeName | None) -> str:
        if node is not None:
            return f"node {node} has joined, and has not registered its cards yet"
        made = self._made.get(wish.id)
        return await self.placeholders.explain(made["metadata"]["uid"]) if made else ""

    async def _note(self, wish: ScaleWish, reason: str) -> None:
        reason = clip(reason, MAX_MESSAGE)
        if reason and reason != wish.reason:
            await self.store.note(wish, reason)
            extra = {"type": wish.type, "number": wish.number, "reason": reason}
            logger.info("Waiting for a node that an autoscaler was asked for", extra=extra)

    async def _arrive(self, wish: ScaleWish, kind: NodeType, node: NodeName) -> None:
        cards = [card.usage.device for card in self.state.cluster.cards(node)]
        difference = kind.explain_difference(cards)
        if difference:
            why = f"node {node} joined with {difference}"
            await self.drift.note(WRONG_TYPE, wish.type, why, repaired=False)
            await self.store.mark_wrong(wish.type, why)
            self.instruments.scale_wrong_types.inc()
        self.instruments.scale_wait_seconds.observe(wish.age_s)
        await self._end(wish, "arrived", node=node, reason=difference)
        self._announce(wish.pods, ARRIVED, f"requested node {node} ({wish.type}) has joined")
        self.expected.let_in(node)
        self.on_freed()

    async def _give_up(self, wish: ScaleWish, node: NodeName | None) -> None:
        reported = await self._why(wish, node) or wish.reason
        reason = f"no node joined within {self.timeout_s:g} s" if node is None else reported
        if node is None and reported:
            reason = clip(f"{reason}: {reported}", MAX_MESSAGE)
        await self._end(wish, "given-up", node=node, reason=reason)
        self.instruments.scale_given_up.labels(wish.type).inc()
        message = f"no longer waiting for a node of {wish.type}: {reason}"
        self._announce(wish.pods, GIVEN_UP, message, warns=True)

    async def _end(
        self,
        wish: ScaleWish,
        state: Literal["arrived", "given-up", "dropped"],
        *,
        node: NodeName | None = None,
        reason: str = "",
    ) -> None:
        if await self.store.end(wish, state, node=node, reason=reason):
            extra = {"type": wish.type, "state": state, "node": node or "", "reason": reason}
            logger.info("Ended the request for a node", extra=extra)
        pod = self._made.pop(wish.id, None)
        if pod is not None:
            await self.placeholders.delete(pod)

    # New wishes

    async def plan(self) -> None:
        """Plan nodes for the waiting pods; begin and drop requests for nodes. Raises: HamiError."""
        due = self.questions.due()
        async with self._lock:
            wishes = await self.store.open()
            arriving = frozenset(filter(None, map(_node_of, self._made.values())))
        is_quiet = not due and not wishes
        if is_quiet and time.monotonic() - self._types_at < TYPES_INTERVAL_S:
            return
        self._types_at = time.monotonic()
        known = await self.store.types()
        closed = self._closed_types(known, await self.store.failures())
        coming = {NodeName(placeholder_name(w.type, w.number)): w for w in wishes}
        question = await self.questions.question(
            due,
            coming={name: wish.type for name, wish in coming.items()},
            leaving_out=arriving,
            kept=[
                replace(each.kind, existing=0)
                for each in known.values()
                if not each.kind.is_described
            ],
            closed=closed,
        )
        with self.instruments.scale_plan_seconds.time():
            answer = await self.search(question)
        await self._keep_types(answer.types, known)
        async with self._lock:
            # The plan is out of date if a request ended during the search.
            if {wish.id for wish in await self.store.open()} == {wish.id for wish in wishes}:
                await self._go_by(answer, coming)

    def _closed_types(
        self, known: Mapping[str, KnownType], failures: Mapping[str, Failures]
    ) -> dict[str, str]:
        """Return why nodes of some types are not requested."""
        found = dict[str, str]()
        for name, failed in failures.items():
            left_s = BACK_OFF_S[min(failed.count, len(BACK_OFF_S)) - 1] - failed.ago_s
            if left_s > 0:
                times = f"was given up {count_noun(failed.count, 'time')}"
                found[name] = f"{times} and is tried again in {ceil(left_s / 60)} min"
        return found | {
            name: f"is wrong: {each.wrong}" for name, each in known.items() if each.wrong
        }

    async def _keep_types(self, types: Sequence[NodeType], known: Mapping[str, KnownType]) -> None:
        """Record the types that changed; a type whose cards changed is no longer marked wrong."""
        for kind in types:
            kept, before = replace(kind, closed="", existing=0), known.get(kind.name)
            if before is None or before.kind != kept:
                is_same = before is not None and not kept.explain_difference(before.kind.cards)
                await self.store.save_type(kept, before.wrong if before and is_same else "")

    async def _go_by(self, answer: ScaleAnswer, coming: Mapping[NodeName, ScaleWish]) -> None:
        plan, pods_on = answer.plan, dict[NodeName, list[PodUid]]()
        for uid, node in plan.placed.items():
            pods_on.setdefault(node, []).append(PodUid(uid))
        idle = frozenset(wish.id for name, wish in coming.items() if name not in pods_on)
        for name, wish in coming.items():
            wanted = pods_on.get(name, [])
            if wanted and list(wish.pods) != wanted:
                await self.store.set_pods(wish, wanted)
            elif wish.id in idle & self._idle:
                await self._end(wish, "dropped", reason="no pod needs it any more")
        self._idle = idle
        begun: dict[str, list[PodUid]] = {}
        numbers = {(wish.type, wish.number) for wish in coming.values()}
        for name, kind in plan.opened.items():
            wanted = pods_on[name]
            number = next(n for n in count(1) if (kind.name, n) not in numbers)
            numbers.add((kind.name, number))
            if await self.store.want(kind.name, number, wanted, answer.hosts[name]):
                begun.setdefault(kind.name, []).extend(wanted)
        verb = "requested" if self.asks else "needed"
        for type_name in begun:
            nodes = [n for n, k in plan.opened.items() if k.name == type_name]
            nodes += [n for n, wish in coming.items() if wish.type == type_name and n in pods_on]
            pods = [uid for node in nodes for uid in pods_on[node]]
            nodes_text = f"{count_noun(len(nodes), 'node')} of {type_name} {verb}"
            self._announce(pods, ASKED, f"{nodes_text}; this pod is 1 of {len(pods)} waiting pods")
        for reason, names in plan.refused.items():
            uids = [PodUid(name) for name in names]
            self._announce(
                uids, NOT_ASKED, f"no node is requested for this pod: {reason}", warns=True
            )

    def _announce(
        self, pods: Iterable[PodUid], reason: str, message: str, *, warns: bool = False
    ) -> None:
        for uid in pods:
            pod = self.pods.get(uid)
            if pod is not None:
                metadata = pod["metadata"]
                reference = PodRef(metadata["namespace"], metadata["name"], uid)
                self.announcer.announce(
                    reference, reason, clip(message, MAX_MESSAGE), warning=warns, once=True
                )


def _node_of(placeholder: Json | None) -> NodeName | None:
    node = placeholder and placeholder["spec"].get("nodeName")
    return NodeName(node) if node else None
