"""Prepare pods' ResourceClaims: a grant of the ledger, limits, and a CDI description.

The kubelet calls once for a pod's sandbox, not for each start, and may repeat the call: existing
files are written again unchanged. The agent does not ask about a further pod of a prepared claim
(the scheduler's `ClaimHolders` enters it). Each container gets one CDI device of ours, named after
the first of its allocated devices; its other devices need none, because that one describes all.

Slices that other pods hold by the same claims pass to them when one grant ends. Records are created
again when the state file was lost, because the kubelet does not call again for running pods: from
the ledger's first complete answer, the kubelet's devices by claims (PodResources), and the device
descriptions, which name the folder of each account. With them usage is sampled, limits are
enforced, and directories are removed with their pod; until then existing descriptions stay
(`cleanup/garbage_collection.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from hamicommon import telemetry
from hamicommon.domain.allocations import SliceKey, slices_name
from hamicommon.domain.ids import PodUid
from hamicommon.dra.claims import (
    AllocatedDevice,
    ContainerClaims,
    allocated_devices,
    claim_names,
    container_claims,
    holders,
    pods_of,
)
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.events import ClaimsRequest, claims_subject
from hamicommon.k8s.types import Json
from hamicommon.process.backoff import Backoff
from opentelemetry.trace import get_tracer

from hami_node_agent.adapters.kubernetes.pod_fields import is_terminal, ref_of
from hami_node_agent.adapters.kubernetes.resource_api import ResourceClaims
from hami_node_agent.allocation.late_binding import SETTLE_S
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.allocation.response import CDI_KIND
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import enter_reply
from hami_node_agent.grants.ports import RequestBus
from hami_node_agent.grants.records import AgentState, Record, passed_on
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

tracer = get_tracer(__name__)

# One read of the pod, one of each claim, one transaction and one patch; the kubelet gives us 45 s.
ASK_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """ResourceClaim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """Device of a claim, with the CDI devices that the runtime shall add."""

    device: AllocatedDevice
    cdi_devices: tuple[str, ...]


@dataclass(eq=False)
class ClaimPreparation:
    """Implement NodePrepareResources."""

    node: NodePorts
    slices: DescribedSlices
    _: KW_ONLY
    api: ResourceClaims
    bus: RequestBus
    node_name: str
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices when its pod's slices are granted and described.

        Raises: NotFound, Conflict, InvalidRequest, Forbidden, Unavailable; the kubelet retries.
        """
        claim = await self.api.claim(ref.namespace, ref.name)
        if claim["metadata"]["uid"] != ref.uid:
            raise NotFound(f"claim {ref.namespace}/{ref.name} has been recreated")
        pods = await self._pods_of(claim)
        fresh: list[bool] = []
        names: dict[SliceKey, tuple[str, ...]] = {}
        for pod in pods:
            claimed, changed = await self._prepare_pod(pod, ref)
            fresh += changed
            names |= self._names(PodUid(pod["metadata"]["uid"]), claimed)
        if any(fresh):
            await asyncio.sleep(SETTLE_S)
        return tuple(
            PreparedDevice(device=device, cdi_devices=names.get(device.key, ()))
            for device in allocated_devices(claim, PodUid(pods[0]["metadata"]["uid"]))
        )

    async def _prepare_pod(
        self, pod: Json, ref: ClaimRef
    ) -> tuple[tuple[ContainerClaims, ...], list[bool]]:
        """Return the pod's granted and described slices by claims, and which are new.

        Raises: NotFound, Conflict, InvalidRequest, Forbidden, Unavailable.
        """
        try:
            claimed = await self._read_claims(pod)
            grant = await self._grant_of(pod)
            return claimed, list(await self._describe_slices(grant, claimed))
        except HamiError as exc:
            logger.error("Failed to prepare a claim", extra={"claim": ref.name, "error": str(exc)})
            if not isinstance(exc, NotFound):
                await self.node.pods.warn(ref_of(pod), f"claim {ref.name} not prepared: {exc}")
            raise

    async def _pods_of(self, claim: Json) -> list[Json]:
        """Return the pods of this node that use the claim and have not ended.

        Raises: NotFound, Unavailable.
        """
        metadata, found = claim["metadata"], []
        for one in pods_of(claim):
            with suppress(NotFound):
                pod = await self.api.pod(metadata["namespace"], one["name"])
                here = pod["spec"].get("nodeName") == self.node_name
                if pod["metadata"]["uid"] == one["uid"] and here and not is_terminal(pod):
                    found.append(pod)
        if not found:
            raise NotFound(
                f"claim {metadata['namespace']}/{metadata['name']} is reserved for no "
                "pod of this node"
            )
        return found

    async def _read_claims(self, pod: Json) -> tuple[ContainerClaims, ...]:
        metadata = pod["metadata"]
        devices = {
            key: allocated_devices(
                await self.api.claim(metadata["namespace"], name), PodUid(metadata["uid"])
            )
            for key, name in claim_names(pod).items()
        }
        return container_claims(pod, devices)

    async def _grant_of(self, pod: Json) -> NodeGrant:
        """Return the pod's grant. Raises: Conflict with the ledger's reason, Unavailable."""
        metadata = pod["metadata"]
        known = self.node.state.book.of(metadata["uid"])
        if known is not None and known.claimed:
            return known
        reply = await self.bus.request(
            claims_subject(self.node_name),
            ClaimsRequest(
                node=self.node_name,
                pod_uid=metadata["uid"],
                namespace=metadata["namespace"],
                pod_name=metadata["name"],
            ),
            timeout_s=ASK_TIMEOUT_S,
        )
        refused = await enter_reply(
            self.node.state, reply, pod_uid=metadata["uid"], node=self.node_name
        )
        known = self.node.state.book.of(metadata["uid"])
        if refused or known is None:
            raise Conflict(refused or "the pod's grant has ended already")
        return known

    async def _describe_slices(
        self, grant: NodeGrant, claimed: Sequence[ContainerClaims]
    ) -> Sequence[bool]:
        """Describe the slices; return the containers with new ones. Raises: Conflict, Unavailable.

        The kubelet asks repeatedly; existing slices are no step of the pod's trace.
        """
        async with self._turn:
            if all(self._known_record(grant, each) for each in holders(claimed)):
                return [await self._settle(grant, each) for each in holders(claimed)]
            context = telemetry.extract({"traceparent": grant.traceparent})
            with tracer.start_as_current_span("prepare", context=context) as span:
                span.set_attributes(
                    telemetry.pod_attributes(grant.namespace, grant.pod_name, grant.pod_uid)
                )
                return [await self._settle(grant, each) for each in holders(claimed)]

    def _known_record(self, grant: NodeGrant, container: ContainerClaims) -> Record | None:
        """Return the container's record, or that of another container with the same slices."""
        known = self._record_of(grant.pod_uid, container.name)
        if known is None or known.allocation_id != grant.allocation_id:
            known = self.node.state.saved.records.get(slices_name(container.keys))
        return known

    async def _settle(self, grant: NodeGrant, container: ContainerClaims) -> bool:
        """Write limits and description of a container's slices; return True if they are new.

        Raises: Conflict, Unavailable.
        """
        granted = grant.container(container.name)
        if granted is None:
            raise Conflict(f"the pod's grant has no slices for container {container.name}")
        env = await self.node.pods.container_env(grant, container.name)
        known = self._known_record(grant, container)
        if known is not None:
            await asyncio.to_thread(self.slices.put, known, env)
            if known.allocation_id != grant.allocation_id:
                await self.node.state.change(lambda saved: self.slices.add_records(saved, grant))
            return False
        # Always the same: what an agent made before it was killed is written again, and not beside;
        # and the kubelet has the same for all pods of a claim.
        nonce = slices_name(container.keys)
        fresh = self.slices.record(nonce, frozenset(), grant, granted, env)
        there = await asyncio.to_thread(self.slices.in_place, fresh)
        record = there or fresh
        await self.node.state.change(
            lambda saved: self.slices.add_records(saved, grant, record),
            first=lambda: (self.slices.put if there else self.slices.make)(record, env),
        )
        logger.info(
            "Prepared a claim",
            extra={
                "pod_uid": grant.pod_uid,
                "container": container.name,
                "cards": list(record.cards),
            },
        )
        return True

    def _record_of(self, pod_uid: str, container: str) -> Record | None:
        records = self.node.state.saved.records.values()
        return next((r for r in records if r.belongs_to(pod_uid, container)), None)

    def _names(
        self, pod_uid: PodUid, claimed: Sequence[ContainerClaims]
    ) -> Mapping[SliceKey, tuple[str, ...]]:
        """Return the first device of each container's claims -> the container's CDI device."""
        names = {}
        for holder in holders(claimed):
            record = self._record_of(pod_uid, holder.name)
            nonce = slices_name(holder.keys) if record is None else record.nonce
            names[holder.devices[0].key] = (f"{CDI_KIND}={nonce}",)
        return names


RETRY_FIRST_S, RETRY_LAST_S = 1.0, 60.0


class LostRecords:
    """Recreate lost records of slices by claims once, after the agent has started."""

    def __init__(self, node: NodePorts, slices: DescribedSlices) -> None:
        self._state = node.state
        self._kubelet_state = node.kubelet_state
        self._pods = node.pods
        self._slices = slices

    async def run(self) -> None:
        """Recreate the records, retrying until that succeeds."""
        while not self._state.book.whole:
            await self._state.book_changed.wait(self._state.book_changed.version)
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            try:
                await self.take_up()
            except HamiError as exc:
                logger.warning("Retrying to find claims' records", extra={"error": str(exc)})
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def take_up(self) -> None:
        """Recreate missing records of pods' slices by claims. Raises: Unavailable."""
        if not any(self._missing()):
            return
        held = await self._kubelet_state.claim_nonces()
        # Prepared before the kubelet was asked: recorded by now, if by us.
        for nonce, grant, container in list(self._missing()):
            if nonce in held:
                await self._record(nonce, grant, container)

    def _missing(self) -> Iterator[tuple[str, NodeGrant, str]]:
        """Yield (nonce, grant, container) of slices by claims without a record."""
        for nonce, grant, container in self._state.book.slices():
            known = nonce in self._state.saved.records
            if not known and grant.container(container) is not None:
                yield nonce, grant, container

    async def _record(self, nonce: str, grant: NodeGrant, container: str) -> None:
        granted = grant.container(container)
        assert granted is not None
        env = await self._pods.container_env(grant, container)
        fresh = self._slices.record(nonce, frozenset(), grant, granted, env)
        record = await asyncio.to_thread(self._slices.in_place, fresh)
        if record is None:
            # After a reboot: the kubelet has it prepared before anything starts.
            return

        def edit(saved: AgentState) -> AgentState:
            known: Record | None = saved.records.get(nonce)
            return saved if known else self._slices.add_records(saved, grant, record)

        await self._state.change(edit, first=lambda: self._slices.put(record, env))
        logger.warning(
            "Recreated the lost record of a prepared claim",
            extra={"pod_uid": grant.pod_uid, "container": container, "cards": list(record.cards)},
        )


async def keep_passed_on(state: NodeState) -> None:
    """Pass records of shared slices to other pods when grants end, until cancelled."""
    backoff = Backoff(0.5, 30.0)
    while True:
        seen, wait_s = state.book_changed.version, None
        try:
            await state.change(lambda saved: passed_on(saved, state.book))
            backoff.reset()
        except Unavailable as exc:
            wait_s = backoff.next_s()
            logger.warning("Retrying to hand over records", extra={"error": str(exc)})
        await state.book_changed.wait(seen, wait_s)
