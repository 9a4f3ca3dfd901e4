"""Explain why a pod is on its node, or waits.

`GET /v1/pods/{uid}/explain` collects the facts of the ledger and the API server, and passes them to
the pure `hamicommon.explain`: the stored decision with its cards, the holders at that moment, and
the pod itself. `GET /v1/undecided-pods` lists the pods that wait and never reached /filter, so they
have no decision: kube-scheduler allocates their ResourceClaims, or it refuses every node itself
(cordoned, tainted, no CPU) with its own reason in the pod's condition PodScheduled, or the pod
names a resource that is nearly one of ours.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

from hamicommon.admission.idle_cards import resource_names
from hamicommon.admission.mistakes.typos import misspelt, misspelt_resources
from hamicommon.admission.mistakes.warnings import remarks
from hamicommon.domain.allocations import Origin
from hamicommon.domain.granted_cards import HEALTHY, LimitState
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.dra.claims import claim_names
from hamicommon.dra.requests import amounts_of, is_ours
from hamicommon.errors import Forbidden, NotFound
from hamicommon.explain.answer import (
    MAX_NODES,
    CardTrouble,
    Explanation,
    NodeVerdict,
    QuotaUser,
    cordoned_text,
    explain,
)
from hamicommon.explain.counterfactuals import Circumstances, PodHolding
from hamicommon.explain.held_rows import grants_of, holdings_of
from hamicommon.explain.record import DecisionRecord, record_of
from hamicommon.explain.unscheduled import waits, why_unallocated, why_undecided
from hamicommon.k8s.annotations import CLAIM_SHAPE, RETRY_AT, annotations_of
from hamicommon.k8s.pod_groups import group_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.kueue.workloads import wait_at_kueue
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.rules import ROOM_HELD
from hamicommon.vendors.pod_request import wants_devices
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.placement.decisions import DecisionQueue
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

# kube-scheduler moves pods out of its unschedulable queue then, whatever happened.
RETRIED_AFTER = "5 minutes"

MAX_CONCURRENT = 2
"""Maximum number of explanations computed at the same time.

Each takes a thread, and up to the search's budget of processor time.
"""


@dataclass(eq=False, kw_only=True)
class Explainer:
    """Explains pods from the ledger and the API server.

    `known_pods`: those of the pod watch; `silent`: nodes whose agents are silent; `cordoned`: nodes
    that kube-scheduler offers to no pod; `hints_preemption`: whether /v1/preempt answers here.
    """

    queries: PostgresQueries
    pods: PodApi
    known_pods: Mapping[PodUid, JsonMapping]
    vendors: Vendors
    scheduler_name: str
    recorder: DecisionQueue
    new_view: Callable[[], ClusterView]
    silent: Callable[[], Collection[NodeName]]
    cordoned: Callable[[], frozenset[NodeName]]
    hints_preemption: bool = True
    _turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT), init=False
    )

    async def explain(self, uid: PodUid, namespace: str = "", name: str = "") -> Explanation:
        """Explain the pod; `namespace` and `name` find one without a decision.

        Raises: NotFound when nothing knows the pod, Unavailable.
        """
        async with self._turns:
            return await self._explain(uid, namespace, name)

    async def _explain(self, uid: PodUid, namespace: str, name: str) -> Explanation:
        rows = await self.queries.decisions(uid)
        attempts = await self.queries.allocations(pod_uid=uid)
        if rows or attempts:
            latest = (rows or attempts)[0]
            namespace, name = latest["namespace"], latest["pod_name"]
        pod = await self._pod(uid, namespace, name)
        limits = [limit_note(row) for row in await self.queries.limits(uid)]
        cards = await self._troubles(uid, attempts)
        if not rows:
            if pod is None and not attempts:
                raise NotFound(f"no decision is recorded for a pod with uid {uid}")
            found = self._explain_undecided(uid, namespace, name, pod, attempts, limits)
            nodes = await self.queries.wanted_nodes(uid)
            return replace(found, cards=cards, notes=[*nodes, *found.notes])
        blobs = await self.queries.snapshots(
            [rows[0][column] for column in ("inventory", "counters") if rows[0][column]]
        )
        # Thousands of cards are read, judged and judged again: beside the event loop.
        record = await asyncio.to_thread(
            record_of,
            rows[0],
            inventory=blobs.get(rows[0]["inventory"] or ""),
            counters=blobs.get(rows[0]["counters"] or ""),
            new_view=self.new_view,
        )
        held = await self._read_holdings(record, namespace)
        about = Circumstances(
            holdings=[each for _, some in held for each in some],
            priorities=self._priorities({uid, *(holder for holder, _ in held)}),
            unhealthy_since=await self._unhealthy_since(record),
            names=resource_names(self.vendors),
            cordoned=self._cordoned_nodes(pod),
        )
        found = await asyncio.to_thread(explain, uid, namespace, name, record, about, self.new_view)
        return replace(
            found,
            quota_users=await self._quota_users(record),
            cards=cards,
            attempts=attempts,
            earlier=[in_short(row) for row in rows[1:]],
            notes=[
                *limits,
                *self._remarks(pod),
                *self._preemption(pod, record, about),
                *await self.queries.wanted_nodes(uid),
                *self._losses(),
                *found.notes,
            ],
            retry=_retry(record, pod),
            wait_end=rows[0]["wait_end"] or "",
            wait_ended_at=rows[0]["wait_ended_at"],
        )

    async def _troubles(self, uid: PodUid, attempts: Sequence[Row]) -> list[CardTrouble]:
        """Return the pod's cards whose condition has changed since they were granted."""
        if not any(row["ended_at"] is None for row in attempts):
            return []
        cards = await self.queries.pod_cards(pod_uid=uid, silent=self.silent())
        if any(card.condition.kind.hides_limits for card in cards):
            for row in attempts:
                if row.get("limit_state") == LimitState.ENFORCED:
                    row["limit_state"] = LimitState.UNKNOWN
        return [
            CardTrouble(
                container=card.container,
                uuid=card.uuid,
                condition=card.condition.kind,
                sentence=card.condition.sentence,
                advice=card.condition.advice,
            )
            for card in cards
            if card.condition != HEALTHY
        ]

    def _remarks(self, pod: Json | None) -> tuple[str, ...]:
        if pod is None:
            return ()
        return remarks(pod, self.vendors) + misspelt(pod, self.vendors)

    def _preemption(
        self, pod: Json | None, record: DecisionRecord, about: Circumstances
    ) -> Iterator[str]:
        """Yield a hint at the pods that would be preempted, if the pod may preempt."""
        if pod is None or not self.hints_preemption or not waits(pod) or group_of(pod):
            return
        spec, name = pod["spec"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        priority = spec.get("priority") or 0
        short_of_cards = record.outcome == "refused" and record.quota is None
        if ROOM_HELD in record.reasons.values() or not short_of_cards or priority <= 0:
            return
        holders = {each.pod for each in about.holdings}
        if spec.get("preemptionPolicy") == "Never":
            yield "its preemptionPolicy is Never: no pod is preempted for it"
        elif holders and all(about.priorities.get(each, -1) >= priority for each in holders):
            least = f"priority {priority} or more"
            yield f"no pod is preempted for it: those that hold the cards have {least}"
        else:
            yield (
                f"its priority is {priority}: `hamictl preempt {name}` shows which pods of lower "
                "priority would be preempted for it"
            )

    def _cordoned_nodes(self, pod: Json | None) -> frozenset[NodeName]:
        """Return the nodes that kube-scheduler does not offer to a waiting pod."""
        mine = pod is not None and pod["spec"].get("schedulerName") == self.scheduler_name
        return self.cordoned() if pod is not None and mine and waits(pod) else frozenset()

    def _explain_undecided(
        self,
        uid: PodUid,
        namespace: str,
        name: str,
        pod: Json | None,
        attempts: Sequence[Row],
        limits: Sequence[str],
    ) -> Explanation:
        if attempts:
            summary = f"it has an allocation ({attempts[0]['state']}), but no decision is recorded"
            if attempts[0]["origin"] == Origin.CLAIM:
                summary = (
                    "kube-scheduler allocated its ResourceClaims, and the ledger granted them when "
                    f"its node prepared them ({attempts[0]['state']})"
                )
        else:
            assert pod is not None
            summary = why_undecided(pod, self.vendors, self.scheduler_name)
        return Explanation(
            pod_uid=uid,
            namespace=namespace,
            pod_name=name,
            outcome="undecided",
            summary=summary,
            nodes=[
                NodeVerdict(node=node, fits=False, text=cordoned_text(node))
                for node in sorted(self._cordoned_nodes(pod))[:MAX_NODES]
            ],
            notes=[*limits, *self._remarks(pod), *self._losses()],
            attempts=attempts,
        )

    async def _pod(self, uid: PodUid, namespace: str, name: str) -> Json | None:
        if not name:
            return None
        try:
            pod = await self.pods.get(namespace, name)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == uid else None

    async def _read_holdings(
        self, record: DecisionRecord, namespace: str
    ) -> Sequence[tuple[PodUid, Sequence[PodHolding]]]:
        if record.outcome != "refused" or record.view is None or record.quota is not None:
            return []
        rows = await self.queries.held_at(record.detail_at, sorted(record.view.nodes), namespace)
        found = []
        for (pod, node), some in groupby(rows, key=_owner):
            slices = list(some)
            held = holdings_of(pod, NodeName(node), slices)
            found.append((PodUid(slices[0]["pod_uid"]), held))
        return found

    def _priorities(self, uids: Collection[PodUid]) -> dict[str, int]:
        pods = (self.known_pods[uid] for uid in uids if uid in self.known_pods)
        return {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod["spec"].get("priority")
            or 0
            for pod in pods
        }

    async def _quota_users(self, record: DecisionRecord) -> list[QuotaUser]:
        if record.quota is None:
            return []
        rows = await self.queries.held_at(record.detail_at, [], record.quota.namespace)
        amounts: Counter[str] = Counter()
        for (pod, _), slices in groupby(rows, key=_owner):
            taken = quota_amounts(grants_of(list(slices)), self.vendors)
            amounts[pod] += taken.get(record.quota.resource, 0)
        return [QuotaUser(pod=pod, amount=n) for pod, n in amounts.most_common() if n]

    async def _unhealthy_since(self, record: DecisionRecord) -> dict[GpuUuid, datetime]:
        if record.view is None or record.outcome != "refused":
            return {}
        sick = [
            usage.device.uuid
            for node in record.view.nodes
            for usage, _ in record.view.cards(node)
            if not usage.device.healthy
        ]
        if not sick:
            return {}
        since = await self.queries.unhealthy_since(sick, record.detail_at)
        return {GpuUuid(uuid): at for uuid, at in since.items()}

    def _losses(self) -> list[str]:
        """Return a sentence about decisions that this replica could not record."""
        notes = []
        if self.recorder.dropped:
            notes.append(
                f"{self.recorder.dropped} decisions of this replica are not recorded: its queue "
                "was full"
            )
        if self.recorder.waiting:
            notes.append(f"{self.recorder.waiting} decisions of this replica wait to be written")
        return notes


def limit_note(row: Row) -> str:
    """Return a sentence about a period in which the pod exceeded its limits."""
    began, ended = f"{row['began_at']:%Y-%m-%d %H:%M:%S}", row["ended_at"]
    when = f"since {began}" if ended is None else f"from {began} to {ended:%Y-%m-%d %H:%M:%S}"
    container = f" of container {row['container']}" if row["container"] else ""
    held = "" if row["held_mib"] is None else f" ({row['peak_mib']} MiB at most)"
    end = "; the pod was evicted for it" if row["evicted_at"] else ""
    problem = (
        f"; it could not be evicted: {row['eviction_problem']}" if row["eviction_problem"] else ""
    )
    return f"limits {row['state']}{container} {when}: {row['reason']}{held}{end or problem}"


def _owner(row: Row) -> tuple[str, str]:
    return f"{row['namespace']}/{row['pod_name']}", row["node"]


def in_short(row: Row) -> Json:
    """Return a decision without its cards."""
    names = ("at", "last_at", "outcome", "node", "repeat_count", "trace_id")
    return {name: row[name] for name in names} | {"summary": row["summary"] or row["message"]}


def _retry(record: DecisionRecord, pod: Json | None) -> str:
    if record.outcome == "placed":
        return ""
    if pod is None:
        return "the pod is gone and is not retried"
    if (pod.get("spec") or {}).get("nodeName"):
        return ""
    woken = annotations_of(pod).get(RETRY_AT, "")
    return (
        "kube-scheduler retries it when capacity that it could use becomes free, at the latest "
        f"{RETRIED_AFTER} after the last attempt" + (f"; last requeued at {woken}" if woken else "")
    )


CLAIMS = "ResourceClaims"
MISSPELT = "MisspeltResource"
UNSCHEDULABLE = "Unschedulable"
AT_KUEUE = "AtKueue"
"""Reason codes of pods that kube-scheduler could not schedule."""
MAX_PODS = 500
"""Maximum number of pods, the oldest; their claims are read one by one."""
_MAX_CONCURRENT_READS = 8
_MIB = 2**20
AMOUNTS = ("card_count", "memory_bytes", "memory_ratio", "core_ratio")


@dataclass(eq=False, kw_only=True)
class UndecidedPods:
    """Use case: list waiting pods without a decision.

    `pods`: all that the pod watch knows; `came`: whether a pod has come to /filter; `workloads`:
    Kueue's, where its check is answered.
    """

    pods: Callable[[], Iterable[JsonMapping]]
    claims: KubernetesClaimApi
    vendors: Vendors
    scheduler_name: str
    came: Callable[[PodUid], bool]
    workloads: Callable[[], Iterable[Json]] = tuple

    async def waiting(self, namespace: str | None) -> list[Row]:
        """Return the pods, the oldest first, with the columns of the question `waiting-pods`.

        Pods that want nothing of ours are not among them. Raises: Unavailable.
        """
        found = (
            pod
            for pod in self.pods()
            if waits(pod) and namespace in (None, pod["metadata"].get("namespace"))
            if not self.came(PodUid(pod["metadata"]["uid"]))
        )
        pods = sorted(
            found,
            key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["uid"]),
        )
        turns = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def row(pod: JsonMapping) -> Row | None:
            async with turns:
                return await self._row(pod)

        rows = await asyncio.gather(*map(row, pods[:MAX_PODS]))
        queued = [
            _row(each, AT_KUEUE, why) | {"pod_name": f"workload/{each['metadata']['name']}"}
            for each in self.workloads()
            if namespace in (None, each["metadata"]["namespace"]) and (why := wait_at_kueue(each))
        ]
        return [*(each for each in rows if each is not None), *queued[:MAX_PODS]]

    async def _row(self, pod: JsonMapping) -> Row | None:
        """Return the row of a pod; None: it asks for no card of ours."""
        if pod["spec"].get("resourceClaims") and (asked := await self._asked_by_claims(pod)):
            return _row(pod, CLAIMS, why_unallocated(pod), asked)
        copy = dict(pod)
        if wants_devices(copy, self.vendors):
            ours = pod["spec"].get("schedulerName") == self.scheduler_name
            summary = why_undecided(pod, self.vendors, self.scheduler_name)
            return _row(pod, UNSCHEDULABLE, summary) if ours else None
        if mistakes := misspelt_resources(copy, self.vendors):
            return _row(pod, MISSPELT, "; ".join(mistakes))
        return None

    async def _asked_by_claims(self, pod: JsonMapping) -> Row | None:
        """Return the amounts of a pod that asks by claims of ours; None: it does not.

        Where we may not read claims, claims of ours are switched off.
        """
        try:
            claims = await self._claims_of(pod)
        except Forbidden:
            return None
        ours = {name: claim for name, claim in claims.items() if is_ours(claim)}
        return _amounts(ours.values()) if ours or CLAIM_SHAPE in annotations_of(pod) else None

    async def _claims_of(self, pod: JsonMapping) -> dict[str, Json]:
        """Return the existing claims; some may still have to be made from their template."""
        found: dict[str, Json] = {}
        try:
            names = claim_names(pod)
        except NotFound:
            return found
        for key, name in names.items():
            try:
                found[key] = await self.claims.get(pod["metadata"].get("namespace", ""), name)
            except NotFound:
                continue
        return found


def _row(pod: JsonMapping, reason_code: str, summary: str, asked: Row | None = None) -> Row:
    metadata = pod["metadata"]
    return {
        "since_at": metadata.get("creationTimestamp"),
        "pod_uid": metadata["uid"],
        "namespace": metadata.get("namespace"),
        "pod_name": metadata["name"],
        **(asked or dict.fromkeys(AMOUNTS)),
        "reason_code": reason_code,
        "summary": summary,
    }


def _amounts(claims: Iterable[JsonMapping]) -> Row:
    """Return the amounts requested per card, if the claims state them."""
    asked = amounts_of(claims)
    if asked is None:
        return dict.fromkeys(AMOUNTS)
    return {
        "card_count": asked.card_count,
        "memory_bytes": asked.memory_mib * _MIB or None,
        "memory_ratio": 1.0 if asked.whole_memory else None,
        "core_ratio": asked.core_percent / 100,
    }
