"""Grant slices to pods whose ResourceClaims kube-scheduler has allocated.

Three callers request a grant: the node's agent before the pod's sandbox exists
(`hami.grants.claims.<node>`), /bind of a kube-scheduler that calls us, and the watch, for a pod
that uses a claim which another pod already holds: the kubelet has a claim prepared once, so the
second pod starts without a request. The slices are read from the claims themselves, never from the
request. Output: one grant for all of the pod's claims, by the guarded UPDATE of every other grant,
if the ledger has room beside the pods of the device plugin, which the API server and kube-scheduler
do not know. A claim's slices are counted once, and freed with its last pod (ADR 12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hamicommon import telemetry
from hamicommon.bus.reader import read_of_node
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState, Origin, Placement
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.dra.claims import (
    ContainerClaims,
    allocated_devices,
    claim_names,
    claimed_slices_of,
    container_claims,
    granted_containers,
    granted_shares,
    is_held_by_others,
    pods_of,
)
from hamicommon.dra.devices import DRIVER, named_devices
from hamicommon.errors import (
    CapacityConflict,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from hamicommon.events import ClaimsReply, ClaimsRequest
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of, binding_annotations, node_label
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import Entry
from hamicommon.process.best_effort import log_failure
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors
from opentelemetry.trace import get_tracer

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.placer import draft_of
from hami_scheduler.ports.cluster import GrantAnnouncer, PodApi
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.work_queue import WorkQueue

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuestion:
    """Pod whose grant a node or /bind requests."""

    node: NodeName
    pod: PodRef
    arriving_s: float = 0.0
    """Maximum time until its binding ends; 0: the pod is on the node."""


tracer = get_tracer(__name__)

SUBJECT = "hami.grants.claims.*"
REASON = "granted the devices allocated to its ResourceClaims"
MAX_REASON_LENGTH = 512
"""Maximum characters of a reason, about ten slices; the history has all (`_evidence`)."""


@dataclass(eq=False, kw_only=True)
class ClaimGrants:
    """Enter grants for claims, requested by nodes, by /bind and by the watch.

    `binding_s`: so long a grant of /bind waits for its pod to be bound.
    """

    store: AllocationStore
    pods: PodApi
    claims: KubernetesClaimApi
    request_of: Callable[[JsonMapping], PodRequest]
    view: ClusterState
    vendors: Vendors
    instruments: SchedulerInstruments
    label_keys: Sequence[str]
    binding_s: float

    async def respond(self, subject: str, body: bytes) -> ClaimsReply:
        """Return the grant, or why there is none. Raises: InvalidRequest, Unavailable."""
        asked = read_of_node(ClaimsRequest, subject, body, "request for a pod's claims")
        ref = PodRef(asked.namespace, asked.pod_name, PodUid(asked.pod_uid))
        question = NodeQuestion(node=NodeName(asked.node), pod=ref)
        try:
            return ClaimsReply(node=asked.node, grant=grant_of(await self.grant(question)))
        except (NotFound, InvalidRequest, Conflict, Forbidden) as exc:
            return ClaimsReply(node=asked.node, refused=str(exc))

    async def grant_at_bind(self, ref: PodRef, node: NodeName) -> Allocation | None:
        """Return the grant of the pod's claims in state `binding`; None: none of them is ours.

        kube-scheduler writes its allocation into the claims before it binds, so when the node
        prepares, it would be too late for another node. If the ledger has no room, the allocation
        is removed from the claims: otherwise kube-scheduler would try the same card forever.

        Raises: NotFound, InvalidRequest, Conflict with the reason, Unavailable.
        """
        pod = await self.pods.get(ref.namespace, ref.name)
        if not (pod.get("spec") or {}).get("resourceClaims"):
            return None
        claims = await self._ours(ref.namespace, pod)
        if not claims:
            return None
        asked = NodeQuestion(node=node, pod=ref, arriving_s=self.binding_s)
        try:
            return await self.grant(asked)
        except CapacityConflict:
            for claim in claims:
                await self._take_back(claim, ref.uid)
            raise

    async def grant(self, asked: NodeQuestion) -> Allocation:
        """Return the pod's live grant, entering it if there is none.

        A slice that another pod holds by the same claim is not counted again.

        Raises: NotFound, InvalidRequest, Conflict, Forbidden, Unavailable.
        """
        pod = await self.pods.get(asked.pod.namespace, asked.pod.name)
        facts = facts_of(pod)
        there = facts.node == asked.node or (bool(asked.arriving_s) and facts.node is None)
        if facts.uid != asked.pod.uid or not there or facts.phase in TERMINAL_PHASES:
            raise NotFound(
                f"pod {asked.pod.namespace}/{asked.pod.name} does not run on {asked.node}"
            )
        live = await self.store.live_of(asked.pod.uid)
        if live is not None and (live.node != asked.node or live.token is None):
            raise Conflict(f"the pod is {live.state} on {live.node}")
        if live is not None and live.origin is Origin.CLAIM:
            return live
        request = self.request_of(pod)
        if live is not None or request.wants_devices:
            raise Conflict("the pod requests cards by limits and by claims; use only one of them")
        claimed = await self._read_claims(pod, asked)
        admission = annotations_of(pod).get(TRACEPARENT, "")
        with tracer.start_as_current_span("claims", links=telemetry.link_to(admission)) as span:
            span.set_attributes(_attributes(asked))
            await self.view.refresh()
            entry = self._entry(pod, asked, request, claimed)
            return await self._enter(entry, is_arriving=bool(asked.arriving_s))

    async def _read_claims(
        self, pod: JsonMapping, asked: NodeQuestion
    ) -> tuple[ContainerClaims, ...]:
        devices = {
            key: allocated_devices(await self.claims.get(asked.pod.namespace, name), asked.pod.uid)
            for key, name in claim_names(pod).items()
        }
        claimed = container_claims(pod, devices)
        if not any(container.devices for container in claimed):
            raise InvalidRequest("none of its containers uses a HAMi card through a claim")
        return claimed

    def _entry(
        self,
        pod: JsonMapping,
        asked: NodeQuestion,
        request: PodRequest,
        claimed: Sequence[ContainerClaims],
    ) -> Entry:
        usages = [card.usage for card in self.view.cluster.cards(asked.node)]
        named = named_devices({usage.device.uuid: usage for usage in usages})
        shares = granted_shares(claimed, named)
        draft = draft_of(
            request,
            Placement(node=asked.node, containers=granted_containers(claimed, shares)),
            self.view.cluster,
            self.vendors,
            lease_s=asked.arriving_s,
            owner=owner_of(pod, self.label_keys, stamped=False),
        )
        return Entry(
            draft=draft,
            state=AllocationState.BINDING if asked.arriving_s else AllocationState.BOUND,
            origin=Origin.CLAIM,
            reason=clip(f"{REASON}: {_claims_text(claimed)}", MAX_REASON_LENGTH),
            evidence={"claims": list(_evidence(claimed))},
            claims=claimed_slices_of(claimed, shares),
        )

    async def _enter(self, entry: Entry, *, is_arriving: bool) -> Allocation:
        try:
            change = await self.store.enter(entry)
        except CapacityConflict:
            self.view.doubt(entry.draft.placement.node)
            raise
        self.view.apply(change)
        self.instruments.transitions.labels(entry.state.value).inc()
        if not is_arriving:
            await self._mirror(change.allocation)
        return change.allocation

    async def _mirror(self, allocation: Allocation) -> None:
        """Write the pod's annotations like a binding does; failures are only logged."""
        now = datetime.now(UTC)
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=now
        )
        written = {**allocation.annotations, **common}
        with log_failure(logger, "Failed to annotate a running pod"):
            await self.pods.annotate(
                PodRef.of(allocation), annotations=written, labels=node_label(allocation.node)
            )

    async def _ours(self, namespace: str, pod: JsonMapping) -> list[Json]:
        """Return the claims with cards of ours; none without the right to read them."""
        try:
            found = [await self.claims.get(namespace, n) for n in claim_names(pod).values()]
        except Forbidden as exc:
            logger.info("Failed to read claims at /bind", extra={"error": clip(str(exc))})
            return []
        return [claim for claim in found if _has_cards(claim)]

    async def _take_back(self, claim: Json, uid: PodUid) -> None:
        """Deallocate the claims, because kube-scheduler would try the same card again."""
        if is_held_by_others(claim, uid):
            return
        failed = "Failed to take back the allocation of a refused claim"
        with suppress(NotFound), log_failure(logger, failed, but=NotFound):
            await self.claims.set_status(claim, {"allocation": None, "reservedFor": None})


def _attributes(asked: NodeQuestion) -> dict[str, str]:
    """Return the attributes of the span: pod and node."""
    ref = asked.pod
    pod = telemetry.pod_attributes(clip(ref.namespace), clip(ref.name), ref.uid)
    return {**pod, "k8s.node.name": asked.node}


def _claims_text(claimed: Iterable[ContainerClaims]) -> str:
    """Return which claims these are, for the reason of a grant."""
    devices = {device.key: device for container in claimed for device in container.devices}
    return ", ".join(
        f"{device.claim} {device.claim_uid} request {device.request}"
        + (f" share {device.share_id}" if device.share_id else "")
        for device in devices.values()
    )


def _evidence(claimed: Iterable[ContainerClaims]) -> Iterable[dict[str, Any]]:
    """Return the claims on which a grant is based, for the history."""
    for container in claimed:
        for device in container.devices:
            yield {
                "container": container.name,
                "claim": device.claim,
                "claim_uid": device.claim_uid,
                "request": device.request,
                "share_id": device.share_id,
                "device": device.device,
            }


def _has_cards(claim: JsonMapping) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(result["driver"] == DRIVER for result in results)


ATTEMPTS = 3


@dataclass(eq=False, kw_only=True)
class ClaimHolders:
    """Worker that enters grants of pods that share a claim, fed by the pod informer."""

    grants: ClaimGrants
    claims: KubernetesClaimApi
    store: AllocationStore
    announcer: GrantAnnouncer
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _pods: dict[str, JsonMapping] = field(default_factory=dict, init=False)
    """Pods in the queue."""
    _handled: set[PodUid] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue("claim-holders", self._sync, self.bulkhead, self.clock)

    def pod_seen(self, pod: JsonMapping) -> None:
        """Handle a new or changed pod of the informer."""
        if not any("resourceClaimName" in each for each in pod["spec"].get("resourceClaims") or ()):
            return
        facts = facts_of(pod)
        if facts.node is None or facts.phase in TERMINAL_PHASES or facts.uid in self._handled:
            return
        self._pods[facts.uid] = pod
        self.queue.add(facts.uid)

    def pod_gone(self, pod: JsonMapping) -> None:
        """Handle a deleted pod of the informer."""
        uid = PodUid(pod["metadata"]["uid"])
        self._pods.pop(uid, None)
        self._handled.discard(uid)
        self.queue.discard(uid)

    async def _sync(self, key: str) -> None:
        uid, pod = PodUid(key), self._pods.get(key)
        if pod is None:
            return
        live, started = await self.store.live_of(uid), facts_of(pod).started
        if live is None and (started or await self._shares(pod)):
            live = await self._enter(_question(pod))
        # One that runs on claims of others is asked about once.
        if live is not None or started:
            self._handled.add(uid)
        if self._pods.get(key) is pod:  # otherwise it changed since, and is in the queue
            del self._pods[key]

    async def _shares(self, pod: JsonMapping) -> bool:
        """Return whether another pod has one of its claims; other pods ask when they start."""
        namespace = str(pod["metadata"].get("namespace") or "default")
        try:
            names = claim_names(pod)
            claims = [await self.claims.get(namespace, name) for name in names.values()]
        except (NotFound, Forbidden):
            return False
        return any(len(pods_of(claim)) > 1 for claim in claims)

    async def before_end(self, allocation: Allocation) -> None:
        """Make sure that all other holders of its claims are in the ledger. Raises: Unavailable."""
        counted = [each for each in allocation.claims if each.counted]
        for name in sorted({each.claim for each in counted}):
            try:
                claim = await self.claims.get(allocation.namespace, name)
            except (NotFound, Forbidden):
                continue
            if not {each.key for each in counted} & _slices(claim):
                # Another one by this name, or allocated again since.
                continue
            for pod in pods_of(claim):
                if pod["uid"] != allocation.pod_uid:
                    ref = PodRef(allocation.namespace, str(pod["name"]), PodUid(pod["uid"]))
                    await self._enter(NodeQuestion(node=allocation.node, pod=ref))

    async def restore(self, pod: JsonMapping) -> bool:
        """Enter the grant of a pod that runs without one.

        The ledger lost it, and no caller asks again. False: its claims have no card of ours.

        Raises: Conflict when the ledger has no room for it, Unavailable.
        """
        try:
            allocation = await self.grants.grant(_question(pod))
        except (NotFound, InvalidRequest, Forbidden):
            return False
        await self._announce(allocation)
        return True

    async def _enter(self, asked: NodeQuestion) -> Allocation | None:
        """Enter a grant; return None if the pod shall have none. Raises: Unavailable."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                allocation = await self.grants.grant(asked)
                break
            except (NotFound, InvalidRequest, Conflict, Forbidden) as exc:
                # A race for the claim's rows, or for the pod's, is lost once or twice.
                if not isinstance(exc, Conflict) or attempt == ATTEMPTS:
                    extra = {"pod_uid": asked.pod.uid, "error": clip(str(exc))}
                    logger.info("Refused a grant to a pod with a ResourceClaim", extra=extra)
                    return None
        await self._announce(allocation)
        return allocation

    async def _announce(self, allocation: Allocation) -> None:
        # The node gets it with the next snapshot otherwise.
        with log_failure(logger, "Failed to publish the grant of a claim", of=Unavailable):
            await self.announcer.announce(grant_of(allocation))


def _question(pod: JsonMapping) -> NodeQuestion:
    facts, metadata = facts_of(pod), pod["metadata"]
    assert facts.node is not None
    namespace = str(metadata.get("namespace") or "default")
    return NodeQuestion(node=facts.node, pod=PodRef(namespace, str(metadata["name"]), facts.uid))


def _slices(claim: JsonMapping) -> set[tuple[str, str, str]]:
    """Return the keys of the slices that are allocated to it."""
    uid = str(claim["metadata"]["uid"])
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {
        (uid, str(each["request"]), str(each.get("shareID") or each["device"]))
        for each in (allocation.get("devices") or {}).get("results") or ()
    }
