"""Create MIG instances for grants, and destroy those that no container holds.

Input: grants with a profile and a place on the card, chosen by the scheduler; the holders of
instances, as the saved state and the watch of pods show them. An instance is recorded, then made,
then named by the record, then the kubelet is answered: a kill between any two leaves an instance of
ours without a holder, and the next check destroys it. `devices/mig_partition.py` decides; instances
that we did not make are reported and not changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError
from hamicommon.k8s.mig import MigReservation, MigSlice

from hami_node_agent.devices.mig_partition import (
    Instance,
    OwnInstance,
    PartitionPlan,
    in_the_way,
    merge_plans,
    plan,
)
from hami_node_agent.devices.ports import MigDriver
from hami_node_agent.grants.ports import MigDevice, NodePodApi
from hami_node_agent.grants.records import Record
from hami_node_agent.grants.state import NodeState, Signal

logger = logging.getLogger(__name__)

RECREATE_POD = "delete the pod; its controller recreates it"


class MigHolders:
    """Instances that we created, and the containers that hold them."""

    def __init__(self, state: NodeState, pods: NodePodApi) -> None:
        self._state = state
        self._pods = pods

    def devices(self) -> list[MigDevice]:
        """Return the instances that containers hold."""
        known = {each.uuid: each for each in self._state.saved.instances if each.uuid}
        found = []
        for record in self._state.saved.records.values():
            for position, uuid in enumerate(record.mig_uuids):
                if uuid in known and self._is_live(record):
                    found.append(_device(record, position, known[uuid]))
        return found

    def held_uuids(self) -> frozenset[str]:
        """Return MIG uuids in answers to containers of pods that have not ended."""
        return frozenset(
            uuid
            for record in self._state.saved.records.values()
            if self._is_live(record)
            for uuid in record.mig_uuids
        )

    def of(self, card: GpuUuid) -> tuple[OwnInstance, ...]:
        """Return the instances of the card that we created."""
        return tuple(each for each in self._state.saved.instances if each.card == card)

    def standing(
        self, record: Record, card: GpuUuid, part: MigSlice, found: Iterable[Instance]
    ) -> OwnInstance | None:
        """Return the existing instance at that place that the record's pod holds, if any.

        Init containers may share it with those that run after them.
        """
        of_pod = self._state.saved.of_pod(record.pod_uid)
        uuids = {uuid for each in (record, *of_pod) for uuid in each.mig_uuids}
        for own in self._state.saved.instances:
            if (own.card, own.part) == (card, part) and own.uuid in uuids:
                return own if any(own.is_at(each) for each in found) else None
        return None

    def whose(self, other: Instance, wanting: Record, *, foreign: bool) -> str:
        """Describe an instance that occupies the place that `wanting` needs."""
        if foreign:
            return "another program created, occupies the place"
        for record in self._state.saved.of_pod(wanting.pod_uid):
            if other.uuids & set(record.mig_uuids):
                return (
                    f"container {record.container} of the same pod holds, occupies the place: "
                    "the kubelet requests the devices of init and app containers together, so both "
                    "instances must exist at the same time; give these containers equal amounts"
                )
        return "another container holds, occupies the place"

    def _is_live(self, record: Record) -> bool:
        # A pod whose object is gone may run on: that it left is the sweep's to find out.
        over = record.pod_uid in self._pods.snapshot().ended
        return not over or self._pods.name_of(record.pod_uid) is None


def _device(record: Record, position: int, own: OwnInstance) -> MigDevice:
    return MigDevice(
        pod=PodRef(uid=record.pod_uid, namespace=record.namespace, name=record.pod_name),
        container=record.container,
        reservation=MigReservation(
            container_index=0,
            device_index=position,
            card=own.card,
            slice=own.part,
            mig_uuid=own.uuid,
            gpu_instance_id=own.gpu_instance,
            compute_instance_id=own.compute_instance,
        ),
    )


# Programs of the pod before may take a moment to end; the node's lock is held for 30 s.
BUSY_WAIT_S = 5.0
# The driver does not announce when an instance is free.
_BUSY_POLL_S = 0.1


class MigInstances:
    """MIG instances of this node's cards."""

    def __init__(
        self,
        state: NodeState,
        driver: MigDriver,
        *,
        pods: NodePodApi,
        cards: Collection[GpuUuid],
        on_foreign: Callable[[Sequence[Instance]], None],
        interval_s: float,
    ) -> None:
        """`cards` may grow.

        `on_foreign` is called with other owners' instances after each check.
        """
        self._state = state
        self._driver = driver
        self._holders = MigHolders(state, pods)
        self._cards = cards
        self._on_foreign = on_foreign
        self._interval_s = interval_s
        self._turn = asyncio.Lock()
        self._look = Signal()
        self._logged: frozenset[object] = frozenset()
        self._plan: PartitionPlan | None = None
        self._asked: tuple[GpuUuid, ...] = ()
        self._done: Counter[tuple[str, str]] = Counter()

    @property
    def cards(self) -> tuple[GpuUuid, ...]:
        """Return the cards that answered in the last check."""
        return self._asked

    @property
    def latest(self) -> PartitionPlan | None:
        """Return the result of the last check; None if there was none or it failed."""
        return self._plan

    @property
    def done(self) -> Mapping[tuple[str, str], int]:
        """Number of changes by action (`make`, `destroy`) and result."""
        return self._done

    def devices(self) -> list[MigDevice]:
        """Return the instances that containers hold."""
        return self._holders.devices()

    async def run(self) -> None:
        """Check every few seconds, and after each failed creation, until cancelled."""
        while True:
            seen = self._look.version
            await self.settle()
            await self._look.wait(seen, self._interval_s)

    async def settle(self) -> None:
        """Destroy our instances that no container holds; the driver's errors are not raised.

        Card by card: one that can't be asked keeps its instances, and delays no other.
        """
        async with self._turn:
            plans: dict[GpuUuid, PartitionPlan] = {}
            for card in tuple(self._cards):
                try:
                    plans[card] = await self._settle(card)
                except HamiError as exc:
                    logger.warning(
                        "Retrying to check MIG instances",
                        extra={"card": card, "error": str(exc)},
                    )
            self._asked = tuple(plans)
            self._plan = merge_plans(plans.values()) if plans else None
            if self._plan is not None:
                self._log_news(self._plan)

    @asynccontextmanager
    async def cutting(self, record: Record) -> AsyncIterator[Record]:
        """Yield the record with MIG devices for its slices, created where missing.

        The caller saves it inside the block; instances for an unsaved record are destroyed.
        Raises: Conflict when an instance can't be made, with the reason; Unavailable.
        """
        async with self._turn:
            try:
                found = await self._instances_of(record)
                own = [
                    self._holders.standing(record, card, part, found)
                    or await self._make(record, card, part)
                    for card, part in _parts(record)
                ]
                yield replace(record, mig_uuids=tuple(each.uuid for each in own))
            except BaseException:  # also a cancellation: the next check finds new instances
                self._look.notify()
                raise

    async def missing(self, record: Record) -> str:
        """Return why the container must not start; empty if its MIG devices exist.

        A missing one is recreated; it counts if the driver gives it the same name.
        Raises: Unavailable.
        """
        if record.foreign:
            return ""
        async with self._turn:
            found = await self._instances_of(record)
            try:
                parts = _parts(record)
                if len(record.mig_uuids) != len(parts):
                    return f"it was allocated before the cards were in MIG mode; {RECREATE_POD}"
                for uuid, (card, part) in zip(record.mig_uuids, parts, strict=True):
                    if self._holders.standing(record, card, part, found) is not None:
                        continue
                    if (await self._make(record, card, part)).uuid != uuid:
                        self._look.notify()
                        return _gone_reason(uuid)
            except Conflict as exc:
                return f"{exc}; {RECREATE_POD}"
        return ""

    async def _instances_of(self, record: Record) -> tuple[Instance, ...]:
        """Return the instances on the record's cards. Raises: Unavailable."""
        return await self._driver.instances(tuple(dict.fromkeys(record.cards)))

    async def _make(self, record: Record, card: GpuUuid, part: MigSlice) -> OwnInstance:
        started = time.monotonic()
        try:
            await self._clear(record, card, part)
            intent = OwnInstance(card=card, part=part)
            await self._state.change(lambda saved: saved.with_instance(intent))
            made = await self._driver.make(card, part)
            await self._state.change(lambda saved: saved.with_instance(made))
        except HamiError:
            self._done["make", "failed"] += 1
            raise
        self._done["make", "done"] += 1
        logger.info(
            "Created a MIG instance",
            extra={
                "card": card,
                "profile": part.profile,
                "start": part.start,
                "uuid": made.uuid,
                "took_s": round(time.monotonic() - started, 3),
            },
        )
        return made

    async def _clear(self, record: Record, card: GpuUuid, part: MigSlice) -> None:
        """Destroy earlier pods' instances at that place, waiting for pods that still run.

        Raises: Conflict, Unavailable.
        """
        deadline = time.monotonic() + BUSY_WAIT_S
        while True:
            found = await self._driver.instances([card])
            others = in_the_way(part, card, found)
            if not others:
                return
            now = plan(self._holders.of(card), found, self._holders.held_uuids())
            where = f"MIG {part.profile} at {part.start}+{part.size} of card {card}"
            for other in others:
                if not any(other == instance for _, instance in now.destroy):
                    whose = self._holders.whose(other, record, foreign=other in now.foreign)
                    raise Conflict(
                        f"{where}: GPU instance {other.gpu_instance} at {other.start}+{other.size},"
                        f" which {whose}"
                    )
            try:
                for other in others:
                    await self._driver.destroy(other)
                    self._done["destroy", "done"] += 1
            except Conflict as exc:
                if time.monotonic() > deadline:
                    raise Conflict(f"{where}: {exc}, {BUSY_WAIT_S:g} s after its release") from exc
                await asyncio.sleep(_BUSY_POLL_S)

    async def _settle(self, card: GpuUuid) -> PartitionPlan:
        """Make pending changes on the card. Raises: Unavailable."""
        found = await self._driver.instances([card])
        now = plan(self._holders.of(card), found, self._holders.held_uuids())
        gone = list(now.forget)
        for own, instance in now.destroy:
            try:
                await self._driver.destroy(instance)
            except HamiError as exc:
                # Usually in use: the next check retries.
                result = "busy" if isinstance(exc, Conflict) else "failed"
                self._done["destroy", result] += 1
                logger.warning("Failed to destroy a MIG instance", extra={"error": str(exc)})
                continue
            gone.append(own)
            self._done["destroy", "done"] += 1
            logger.info(
                "Destroyed a MIG instance",
                extra={"card": own.card, "profile": own.part.profile, "uuid": own.uuid},
            )
        if gone:
            await self._state.change(lambda saved: saved.without_instances(gone))
        left = tuple(pair for pair in now.destroy if pair[0] not in gone)
        return replace(now, destroy=left, forget=())

    def _log_news(self, now: PartitionPlan) -> None:
        """Log problems once."""
        news = frozenset({*now.foreign, *now.lost})
        for instance in now.foreign:
            if instance not in self._logged:
                logger.warning(
                    "Keeping a MIG instance of another owner; its place is not offered",
                    extra={
                        "card": instance.card,
                        "gpu_instance": instance.gpu_instance,
                        "start": instance.start,
                        "size": instance.size,
                    },
                )
        for own in now.lost:
            if own not in self._logged:
                logger.error(
                    "Found that the MIG instance of a container is gone",
                    extra={"card": own.card, "uuid": own.uuid},
                )
        self._logged = news
        self._on_foreign(now.foreign)


def _parts(record: Record) -> list[tuple[GpuUuid, MigSlice]]:
    """Return the MIG slices of a record. Raises: Conflict if the grant has no placement."""
    found = []
    for share in record.shares:
        part = MigSlice.from_detail(share.detail)
        if part is None:
            raise Conflict(
                f"the grant of container {record.container} has no MIG profile and place on card "
                f"{share.uuid}, which is in MIG mode: the grant is older than the "
                "scheduler's knowledge of that mode"
            )
        found.append((share.uuid, part))
    return found


def _gone_reason(uuid: str) -> str:
    return (
        f"its MIG device {uuid} is gone (the card was reset, the node restarted, or it was "
        f"destroyed), and a new one has another name; {RECREATE_POD}"
    )
