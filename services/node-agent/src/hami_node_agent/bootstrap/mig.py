"""Construct the parts that cut cards on demand (`OPERATING_MODE=mig`).

Part of the composition root, like `agent.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

from hami_node_agent.adapters.host.device_files import mig_files
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.bootstrap.connections import AgentConnections
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.device_list import Strategy
from hami_node_agent.devices.mig_partition import MIG, MigInstance, OwnInstance
from hami_node_agent.grants.state import NodeState
from hami_node_agent.inventory.mig_instances import MigInstances

Files = Sequence[tuple[str, str]]


def require_possible(settings: Settings) -> None:
    """Check settings that exclude cutting cards on demand. Raises: InvalidRequest."""
    if settings.operating_mode != MIG:
        return
    if settings.mig_strategy != "none":
        raise InvalidRequest(
            f"mig_strategy {settings.mig_strategy} offers existing MIG instances, "
            "operating_mode mig creates its own: set only one of them"
        )
    cdi = {Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI}
    by_cdi = ", ".join(sorted(cdi.intersection(settings.device_list_strategy)))
    if by_cdi:
        raise InvalidRequest(
            f"device_list_strategy {by_cdi} does not work with operating_mode mig, which makes "
            "MIG instances that no CDI file describes: set envvar or volume-mounts"
        )


def mig_instances(settings: Settings, connections: AgentConnections) -> MigInstances | None:
    """Return the MIG instances of the node; None in other operating modes."""
    cutting = connections.driver.cutting
    if cutting is None:
        return None
    return MigInstances(
        connections.state,
        connections.mig_driver(cutting.driver),
        pods=connections.pods,
        cards=cutting.minors,
        on_foreign=cutting.probe.set_foreign,
        interval_s=settings.sweep_interval_s,
    )


def with_instances(
    answers: AnswerPolicy, settings: Settings, connections: AgentConnections
) -> AnswerPolicy:
    """Return the policy for answers that name instances by uuid: an index would name a card."""
    cutting = connections.driver.cutting
    if cutting is None:
        return answers
    devices = replace(answers.devices, id_strategy="uuid")
    if settings.pass_device_specs:
        files = InstanceFiles(
            connections.state,
            minors=cutting.minors,
            dev_root=settings.dev_root,
            proc_root=settings.proc_root or Path("/proc"),
        )
        devices = replace(devices, card_files=files)
    return replace(answers, devices=devices)


class InstanceFiles(Mapping[str, Files]):
    """Device files of MIG devices by uuid, read when requested."""

    def __init__(
        self,
        state: NodeState,
        *,
        minors: Mapping[GpuUuid, int | None],
        dev_root: Path,
        proc_root: Path,
    ) -> None:
        self._state = state
        self._minors = minors
        self._dev_root = dev_root
        self._proc_root = proc_root

    def __getitem__(self, uuid: str) -> Files:
        own = next((each for each in self._own() if each.uuid == uuid), None)
        if own is None:
            raise KeyError(uuid)
        instance = MigInstance(
            uuid=uuid,
            card=own.card,
            profile=own.part.profile,
            gpu_instance=own.gpu_instance,
            compute_instance=own.compute_instance,
            minor=self._minors[own.card],
        )
        return mig_files([instance], self._dev_root, self._proc_root)[uuid]

    def __iter__(self) -> Iterator[str]:
        return (each.uuid for each in self._own())

    def __len__(self) -> int:
        return len(self._own())

    def _own(self) -> list[OwnInstance]:
        return [each for each in self._state.saved.instances if each.uuid]
