"""Nodes, cards, shares and placed pods, as the tests of vendors need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import NodeAsk
from hamicommon.vendors.interface.vendor import PlacedPod

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
NOW_NS = "1767323045000006000"


def container(limits: Json | None = None, requests: Json | None = None) -> Json:
    resources = {"limits": limits, "requests": requests}
    return {"name": "c", "resources": {part: x for part, x in resources.items() if x is not None}}


def pod(one: Json, annotations: Mapping[str, str] | None = None) -> Json:
    return {"metadata": {"annotations": dict(annotations or {})}, "spec": {"containers": [one]}}


def node(capacity: Json | None = None, annotations: Mapping[str, str] | None = None) -> Json:
    return {
        "metadata": {"name": "n", "annotations": dict(annotations or {})},
        "status": {"capacity": capacity or {}, "allocatable": capacity or {}},
    }


def share(card: GpuDevice, **fields: Any) -> DeviceShare:
    amounts = {"memory_mib": card.memory_mib, "core_percent": card.core_percent}
    return DeviceShare(uuid=card.uuid, vendor=card.vendor, **(amounts | fields))


def make_placed_pod(cards: Sequence[GpuDevice], *containers: Sequence[DeviceShare]) -> PlacedPod:
    return PlacedPod(
        node=NodeName("n"),
        containers=tuple(
            ContainerGrant(index=index, name=f"c{index}", role="app", shares=tuple(shares))
            for index, shares in enumerate(containers)
        ),
        cards={card.uuid: card for card in cards},
        selections={},
        now=NOW,
    )


def ask(
    request: DeviceRequest,
    cards: Sequence[DeviceUsage],
    *,
    rules: Sequence[Rule] | None = None,
    selection: Selection | None = None,
) -> NodeAsk:
    """`cards` in the order in which HAMi's loop walks; all of them fit unless `rules` differs."""
    return NodeAsk(
        request=request,
        selection=selection or Selection(),
        policies=("spread",),
        cards=tuple(cards),
        rules=tuple(rules or [Rule.FITS] * len(cards)),
    )


def uuids(shares: Sequence[DeviceShare]) -> list[GpuUuid]:
    return [each.uuid for each in shares]
