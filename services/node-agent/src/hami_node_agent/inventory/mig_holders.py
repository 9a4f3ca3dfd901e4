"""Who holds which MIG instance, as the agent's saved state and the watch of pods show it.

`mig_instances.py` makes and destroys by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.k8s.mig import MigReservation, MigSlice

from hami_node_agent.devices.mig_partition import Instance, OwnInstance
from hami_node_agent.grants.ports import MigDevice, NodePodApi
from hami_node_agent.grants.records import Record
from hami_node_agent.grants.state import NodeState


class MigHolders:
    """The instances that we have made, and the containers that hold them."""

    def __init__(self, state: NodeState, pods: NodePodApi) -> None:
        self._state = state
        self._pods = pods

    def devices(self) -> list[MigDevice]:
        """The instances that containers hold."""
        known = {each.uuid: each for each in self._state.saved.instances if each.uuid}
        found = []
        for record in self._state.saved.records.values():
            for position, uuid in enumerate(record.mig_uuids):
                if uuid in known and self._is_live(record):
                    found.append(_device(record, position, known[uuid]))
        return found

    def held(self) -> frozenset[str]:
        """MIG uuids that answers to containers name whose pod is not over."""
        return frozenset(
            uuid
            for record in self._state.saved.records.values()
            if self._is_live(record)
            for uuid in record.mig_uuids
        )

    def of(self, card: GpuUuid) -> tuple[OwnInstance, ...]:
        """The instances of the card that we have made."""
        return tuple(each for each in self._state.saved.instances if each.card == card)

    def standing(
        self, record: Record, card: GpuUuid, part: MigSlice, found: Iterable[Instance]
    ) -> OwnInstance | None:
        """The instance at that place that the record's pod has, if it is there.

        Init containers may share it with those that run after them.
        """
        of_pod = self._state.saved.of_pod(record.pod_uid)
        uuids = {uuid for each in (record, *of_pod) for uuid in each.mig_uuids}
        for own in self._state.saved.instances:
            if (own.card, own.part) == (card, part) and own.uuid in uuids:
                return own if any(own.is_at(each) for each in found) else None
        return None

    def whose(self, other: Instance, wanting: Record, *, foreign: bool) -> str:
        """Describes an instance that lies where `wanting` was to have one."""
        if foreign:
            return "somebody else made, is in the way"
        for record in self._state.saved.of_pod(wanting.pod_uid):
            if other.uuids & set(record.mig_uuids):
                return (
                    f"container {record.container} of the same pod holds, is in the way: the "
                    "kubelet asks for the devices of init and app containers at once, so both "
                    "instances would have to be there together; let these containers ask for equal "
                    "amounts"
                )
        return "another container holds, is in the way"

    def _is_live(self, record: Record) -> bool:
        # A pod whose object is gone may run on: that it left is the sweep's to find out.
        over = record.pod_uid in self._pods.seen().ended
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
