"""`POST /v1/adopt`: take over the pods of a running HAMi, if their nodes confirm their devices.

Input: the pods that the watch knows, the checkpoints of their kubelets (through our agents), the
ledger's cards. `rules.py` judges each pod. With `apply`, an accepted pod is read once more at the
API server and written with its evidence, and its node's agent gets the grant. Without `apply`
nothing is written anywhere. Both may be repeated at any time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    Footprint,
    Origin,
    Placement,
    footprints,
)
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodOwner, PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import CapacityConflict, Conflict, InvalidRequest, NotFound, Unavailable
from hamicommon.events import HeldContainer, NodeHoldings
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft, Entry
from hamicommon.process.best_effort import log_failure
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adoption.rules import AdoptionResult, Claim, Why, claim_of, held_twice, judge
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import ADOPTED, Announcer
from hami_scheduler.ports.cluster import GrantAnnouncer, PodApi
from hami_scheduler.ports.ledger import AllocationStore

if TYPE_CHECKING:
    from hami_scheduler.adapters.nats import NatsNodeWitness

logger = logging.getLogger(__name__)

ACTOR = "adopt"
REASON = "placed by HAMi, adopted"


def is_over(pod: JsonMapping) -> bool:
    """Return whether the pod has ended."""
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionRequest:
    """Request of the operator."""

    apply: bool = False
    nodes: frozenset[NodeName] = frozenset()
    """Nodes to adopt from; empty: all."""
    believe_node: bool = False

    @classmethod
    def parse(cls, body: object) -> AdoptionRequest:
        """Parse the request's body. Raises: InvalidRequest."""
        if not isinstance(body, dict):
            raise InvalidRequest('expected {"apply": false, "nodes": [], "believe_node": false}')
        unknown = body.keys() - {"apply", "nodes", "believe_node"}
        if unknown:
            raise InvalidRequest(f"{sorted(unknown)[0]}: expected apply, nodes and believe_node")
        for key in ("apply", "believe_node"):
            if not isinstance(body.get(key, False), bool):
                raise InvalidRequest(f"{key} is {body[key]!r}: expected true or false")
        nodes = body.get("nodes") or []
        if not isinstance(nodes, list) or not all(isinstance(name, str) for name in nodes):
            raise InvalidRequest(f"nodes is {nodes!r}: expected a list of names of nodes")
        return cls(
            apply=bool(body.get("apply")),
            nodes=frozenset(NodeName(name) for name in nodes),
            believe_node=bool(body.get("believe_node")),
        )


@dataclass(slots=True, kw_only=True)
class NodeCase:
    """State of adopting from one node: claims, its agent's report, and rows of the answer."""

    node: NodeName
    claims: list[Claim]
    held: dict[PodUid, list[HeldContainer]] = field(default_factory=dict)
    silence: str = ""
    problems: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    taken: list[Footprint] = field(default_factory=list)
    """Amounts that a dry run would add."""


def pod_row(
    claim: Claim,
    outcome: str,
    containers: Sequence[ContainerGrant],
    sentence: str,
    *,
    why: Why | None = None,
) -> dict[str, Any]:
    """Return the answer's row for a pod; `outcome`: adopted, would adopt, held or refused."""
    return {
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "node": claim.node,
        "outcome": outcome,
        "why": why,
        "sentence": sentence,
        "slices": [
            {
                "container": container.name,
                "uuid": share.uuid,
                "memory_mib": share.memory_mib,
                "core_percent": share.core_percent,
            }
            for container in containers
            for share in container.shares
        ],
    }


_AMOUNTS = ("slots", "memory_mib", "core_percent")


def overfull(case: NodeCase, cards: Mapping[GpuUuid, DeviceUsage]) -> Iterator[dict[str, Any]]:
    """Return cards that hold more than they have, now or with what a dry run would add."""
    more: dict[GpuUuid, Counter[str]] = defaultdict(Counter)
    for taken in case.taken:
        more[taken.uuid] += Counter({name: getattr(taken, name) for name in _AMOUNTS})
    for card, usage in cards.items():
        device, added = usage.device, more[card]
        used = {name: getattr(usage, f"used_{name}") + added[name] for name in _AMOUNTS}
        has = {name: getattr(device, name) for name in _AMOUNTS}
        if any(used[key] > has[key] for key in has):
            yield {"node": case.node, "uuid": card, "used": used, "has": has}


def unaccounted_cards(case: NodeCase) -> Iterator[dict[str, Any]]:
    """Return cards that refused pods hold, so that the ledger believes them to be free."""
    refused = {row["uid"]: row for row in case.rows if row["outcome"] == "refused"}
    cards: dict[str, list[str]] = defaultdict(list)
    for uid, held in case.held.items():
        if uid in refused:
            row = refused[uid]
            for card in sorted({c for one in held for c in one.visible or one.cards_of_ids}):
                cards[card].append(f"{row['namespace']}/{row['name']}")
    for card, pods in sorted(cards.items()):
        yield {"node": case.node, "uuid": card, "pods": sorted(pods)}


MAX_CONCURRENT_NODES = 16


@dataclass(eq=False, kw_only=True)
class Adopter:
    """Use case of /v1/adopt.

    `label_keys`: labels of a pod that are kept with its owner.
    """

    ledger: AllocationStore
    pods: PodApi
    grants: GrantAnnouncer
    witness: NatsNodeWitness
    view: ClusterState
    announcer: Announcer
    instruments: SchedulerInstruments
    vendors: Vendors
    known_pods: Mapping[PodUid, JsonMapping]
    synced: Callable[[], bool]
    request_of: Callable[[JsonMapping], PodRequest]
    label_keys: Sequence[str] = ()

    async def answer(self, body: object) -> dict[str, Any]:
        """Adopt pods, or return what would be adopted.

        Raises: InvalidRequest when the body is malformed or a node is unknown, Unavailable.
        """
        wanted = AdoptionRequest.parse(body)
        if not self.synced():
            raise Unavailable("the API server has not been listed yet; try again")
        await self.view.refresh()
        cases = self._cases(wanted)
        turns = asyncio.Semaphore(MAX_CONCURRENT_NODES)

        async def work(case: NodeCase) -> None:
            async with turns:
                await self._node(case, wanted)

        try:
            async with asyncio.TaskGroup() as tasks:
                for case in cases:
                    tasks.create_task(work(case))
        except ExceptionGroup as exc:  # of the TaskGroup
            # One node's failure ends the round; pods written before it stay, and are reported as
            # held when the call is repeated.
            away, others = exc.split(Unavailable)
            if others is None and away is not None:
                raise away.exceptions[0] from exc
            raise
        return {
            "applied": wanted.apply,
            "pods": [row for case in cases for row in case.rows],
            "overfull": [row for case in cases for row in overfull(case, self._cards(case.node))],
            "unaccounted": [row for case in cases for row in unaccounted_cards(case)],
            "problems": [f"node {case.node}: {text}" for case in cases for text in case.problems],
        }

    def _cases(self, wanted: AdoptionRequest) -> list[NodeCase]:
        """Return nodes with cards in the ledger, and nodes of pods with HAMi's annotations."""
        claims: dict[NodeName, list[Claim]] = defaultdict(list)
        for pod in list(self.known_pods.values()):
            claim = None if is_over(pod) else claim_of(pod, self.vendors)
            if claim is not None:
                claims[claim.node].append(claim)
        known = set(self.view.cluster.nodes) | claims.keys()
        for name in sorted(wanted.nodes - known):
            raise InvalidRequest(f"node {name} has no cards in the ledger and no pods of HAMi")
        return [
            NodeCase(node=name, claims=sorted(claims[name], key=lambda c: c.full_name))
            for name in sorted(wanted.nodes or known)
        ]

    async def _node(self, case: NodeCase, wanted: AdoptionRequest) -> None:
        try:
            holdings = await self.witness.holdings(case.node)
        except NotFound as exc:
            case.silence = (
                f"{exc}, so nothing there can be verified; replace HAMi's device plugin with "
                "hami-node-agent and try again"
            )
        except Unavailable as exc:
            case.silence = f"its node's agent did not answer ({exc}); try again"
        else:
            self._note(case, holdings)
        live = {a.pod_uid: a for a in await self.ledger.live(case.node)}
        twice = held_twice(
            {uid: [i for h in held for i in set(h.device_ids)] for uid, held in case.held.items()},
            frozenset(case.held),
        )
        for claim in case.claims:
            await self._pod(case, claim, live.get(claim.uid), twice, wanted)
        self._refuse_unclaimed(case, live)

    def _note(self, case: NodeCase, holdings: NodeHoldings) -> None:
        case.problems = holdings.problems
        case.silence = (
            "its kubelet's checkpoint and PodResources lack it: no container of it holds a device"
            if holdings.readable
            else (
                f"its kubelet's checkpoint and PodResources are unavailable: "
                f"{'; '.join(holdings.problems)}"
            )
        )
        for one in holdings.containers:
            pod = self.known_pods.get(PodUid(one.pod_uid))
            if not one.ended and (pod is None or not is_over(pod)) and one.pod_name:
                case.held.setdefault(PodUid(one.pod_uid), []).append(one)

    async def _pod(
        self,
        case: NodeCase,
        claim: Claim,
        live: Allocation | None,
        twice: Mapping[str, frozenset[PodUid]],
        wanted: AdoptionRequest,
    ) -> None:
        if live is not None:
            case.rows.append(
                pod_row(claim, "held", live.containers, f"{live.origin}: {live.state}")
            )
            return
        verdict = judge(
            claim,
            case.held.get(claim.uid, ()),
            silence=case.silence,
            cards=self._cards(case.node),
            asked=self._request_of(claim),
            held_twice=twice,
            believe_node=wanted.believe_node,
        )
        if verdict.refused is None and wanted.apply:
            try:
                await self._write(claim, verdict)
            except NotFound as exc:
                verdict = AdoptionResult(refused=Why.GONE, sentence=str(exc))
            except CapacityConflict as exc:
                verdict = AdoptionResult(refused=Why.UNKNOWN_CARD, sentence=f"{exc} any more")
            except Conflict as exc:
                verdict = AdoptionResult(refused=Why.GONE, sentence=f"{exc}; try again")
        if verdict.refused is not None:
            case.rows.append(pod_row(claim, "refused", (), verdict.sentence, why=verdict.refused))
            return
        outcome = "adopted" if wanted.apply else "would adopt"
        case.rows.append(pod_row(claim, outcome, verdict.containers, verdict.sentence))
        if not wanted.apply:
            case.taken += footprints(verdict.containers)

    def _refuse_unclaimed(self, case: NodeCase, live: Mapping[PodUid, Allocation]) -> None:
        """Return pods that hold devices without an annotation about it."""
        claimed = {claim.uid for claim in case.claims}
        for uid, held in case.held.items():
            if uid in claimed or uid in live or any(one.ours for one in held):
                continue
            unclaimed = Claim(
                uid=uid,
                namespace=held[0].namespace,
                name=held[0].pod_name,
                node=case.node,
                written_node="",
                containers=(),
            )
            sentence = (
                "it holds devices but has no annotations of HAMi's scheduler; delete it; "
                "its controller recreates it"
            )
            case.rows.append(pod_row(unclaimed, "refused", (), sentence, why=Why.NOT_HAMI))

    def _request_of(self, claim: Claim) -> PodRequest | None:
        pod = self.known_pods.get(claim.uid)
        try:
            return None if pod is None else self.request_of(pod)
        except InvalidRequest:
            return None

    def _cards(self, node: NodeName) -> dict[GpuUuid, DeviceUsage]:
        return {s.usage.device.uuid: s.usage for s in self.view.cluster.cards(node)}

    async def _write(self, claim: Claim, verdict: AdoptionResult) -> None:
        """Write the grant of one adopted pod.

        Raises: NotFound (the pod was deleted since), Conflict, CapacityConflict, Unavailable.
        """
        pod = await self.pods.get(claim.namespace, claim.name)
        facts = facts_of(pod)
        if facts.uid != claim.uid or facts.node != claim.node or is_over(pod):
            raise NotFound("the pod has ended or was replaced")
        # Its annotation could only be its author's: HAMi's webhook stamps no creator.
        owner = owner_of(pod, self.label_keys, stamped=False)
        change = await self.ledger.enter(self._entry(claim, verdict, owner))
        allocation = change.allocation
        self.view.apply(change)
        self.instruments.transitions.labels(AllocationState.ALLOCATED.value).inc()
        self.announcer.announce(
            PodRef(claim.namespace, claim.name, claim.uid),
            ADOPTED,
            "the ledger now records the devices that this pod got from HAMi on "
            f"{claim.node}; the pod keeps running",
            warning=False,
        )
        failed = "Failed to publish an adopted pod's grant; the node gets it with the next snapshot"
        with log_failure(logger, failed, of=Unavailable):
            await self.grants.announce(grant_of(allocation))

    def _entry(self, claim: Claim, verdict: AdoptionResult, owner: PodOwner) -> Entry:
        draft = Draft(
            allocation_id=AllocationId(str(uuid.uuid4())),
            pod_uid=claim.uid,
            namespace=claim.namespace,
            pod_name=claim.name,
            placement=Placement(node=claim.node, containers=verdict.containers),
            lease_s=0.0,
            quota=quota_amounts(verdict.containers, self.vendors),
            owner=owner,
            actor=ACTOR,
        )
        reason = f"{REASON}; {verdict.sentence}" if verdict.sentence else REASON
        return Entry(
            draft=draft,
            state=AllocationState.ALLOCATED,
            origin=Origin.ADOPTED,
            reason=reason,
            evidence=verdict.evidence,
        )
