"""Builders of cards, views and requests for the tests of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    PodRequest,
    Policy,
    Role,
    Selection,
)
from hamicommon.placement.cluster.view import CardState, ClusterView

from tests.unit.devices import a_device

A100 = "NVIDIA A100-SXM4-80GB"


def card(
    uuid: str,
    *,
    used: tuple[int, int, int] = (0, 0, 0),
    index: int = 0,
    slots: int = 10,
    memory_mib: int = 8000,
    core_percent: int = 100,
    type: str = A100,
    vendor: str = "NVIDIA",
    numa: int = 0,
    mode: str = "hami-core",
    healthy: bool = True,
    cordoned: bool = False,
) -> DeviceUsage:
    """A card; `used` is (slots, MiB, percent)."""
    return DeviceUsage(
        device=a_device(
            uuid,
            index=index,
            vendor=vendor,
            type=type,
            slots=slots,
            memory_mib=memory_mib,
            core_percent=core_percent,
            numa=numa,
            mode=mode,
            healthy=healthy,
        ),
        used_slots=used[0],
        used_memory_mib=used[1],
        used_core_percent=used[2],
        cordoned=cordoned,
    )


def view_of(
    nodes: Mapping[str, Sequence[DeviceUsage]],
    pairs: Mapping[str, Mapping[GpuUuid, Mapping[GpuUuid, int]]] | None = None,
) -> ClusterView:
    """A view of these nodes, every card at version 1."""
    view = ClusterView()
    for name, usages in nodes.items():
        view.set_node(
            NodeName(name),
            [CardState(usage, 1) for usage in usages],
            pair_scores=(pairs or {}).get(name),
        )
    return view


def cards(*, memory_mib: int = 0, count: int = 1, core_percent: int = 0) -> DeviceRequest:
    """A request for NVIDIA cards; without memory, the whole card's."""
    return DeviceRequest(
        vendor="NVIDIA",
        count=count,
        memory_mib=memory_mib,
        memory_percent=None if memory_mib else 100,
        core_percent=core_percent,
    )


def container(*requests: DeviceRequest, name: str = "c", role: Role = "app") -> ContainerRequest:
    """One container."""
    return ContainerRequest(name=name, role=role, requests=requests)


def pod(
    *containers: ContainerRequest | DeviceRequest,
    node: str = "binpack",
    gpu: Sequence[str] = ("spread",),
    selection: Selection | None = None,
    policy: Policy | None = None,
) -> PodRequest:
    """Build a pod; a bare request becomes an app container."""
    chosen = policy or Policy()
    return PodRequest(
        uid=PodUid("uid"),
        namespace="default",
        name="pod",
        containers=tuple(container(c) if isinstance(c, DeviceRequest) else c for c in containers),
        selections={"NVIDIA": selection} if selection else {},
        policy=replace(chosen, node=node, gpu=tuple(gpu)),
    )


def two_by_two() -> ClusterView:
    """The filter vectors' two nodes of two cards (protocol 4.6)."""
    return view_of(
        {
            "node1": [card("device1", used=(1, 2000, 25)), card("device2", index=1)],
            "node2": [card("device3"), card("device4", index=1, used=(1, 6000, 75))],
        }
    )


def idle_nodes(count: int) -> ClusterView:
    """Nodes of two idle cards each."""
    return view_of(
        {
            f"n{node}": [card(f"n{node}-{index}", index=index) for index in range(2)]
            for node in range(count)
        }
    )
