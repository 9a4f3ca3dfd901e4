"""How the cards are linked, through NVML, blocking: PCI topology, NVLinks, NVSwitches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pynvml
from hamicommon.domain.ids import GpuUuid

from hami_node_agent.adapters.nvml.samples import optional, text
from hami_node_agent.devices.topology import MAX_NVLINKS, CardLinks

_SWITCH = 2
"""NVML's device type of an NVSwitch at the other end of a link."""


def read_links(handles: Mapping[GpuUuid, Any]) -> tuple[CardLinks, ...]:
    """Of every card its way to the others; what the driver does not know is left out."""
    by_bus = {_bus_id(handle): uuid for uuid, handle in handles.items()}
    return tuple(_links(uuid, handle, handles, by_bus) for uuid, handle in handles.items())


def _links(
    uuid: GpuUuid, handle: Any, handles: Mapping[GpuUuid, Any], by_bus: Mapping[str, GpuUuid]
) -> CardLinks:
    meetings: dict[GpuUuid, int] = {}
    for other, its_handle in handles.items():
        if other != uuid:
            level = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, its_handle)
            if level is not None:
                meetings[other] = int(level)
    straight: Counter[GpuUuid] = Counter()
    to_switches = 0
    for link in _enabled(handle):
        pci = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        peer = None if pci is None else by_bus.get(text(pci.busId).lower())
        if peer is not None:
            straight[peer] += 1
        elif _leads_to_a_switch(handle, link):
            to_switches += 1
    return CardLinks(uuid=uuid, meetings=meetings, nvlinks=straight, switch_links=to_switches)


def _enabled(handle: Any) -> Iterator[int]:
    for link in range(MAX_NVLINKS):
        if optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            yield link


def _leads_to_a_switch(handle: Any, link: int) -> bool:
    kind = optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return kind is not None and int(kind) == _SWITCH


def _bus_id(handle: Any) -> str:
    pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if pci is None else text(pci.busId).lower()
