"""The engine gives the answers that HAMi's real scheduler was recorded to give."""

from collections import defaultdict
from typing import Any

import pytest
from hamicommon.deviceconfig import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.resources import containers_of, pod_request
from hamicommon.placement.place import decide, feasible
from hamicommon.placement.view import CardState, ClusterView
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon import recorded

VENDORS = Vendors.from_config(DeviceConfig())


def view_of(given: dict[str, Any]) -> ClusterView:
    used: dict[GpuUuid, list[int]] = defaultdict(lambda: [0, 0, 0])
    for pod in given["pods"]:
        roles = [role for role, _ in containers_of(pod)]
        # HAMi leaves out containers without a card, so there may be fewer entries than containers.
        shares = keys.decode_pod_devices(pod["metadata"]["annotations"][keys.NVIDIA_ALLOCATED])
        grants = [
            ContainerGrant(index=index, name="", role=roles[index], shares=slices)
            for index, slices in enumerate(shares)
        ]
        for held in footprints(grants):
            for place, amount in enumerate((held.slots, held.memory_mib, held.core_percent)):
                used[held.uuid][place] += amount
    view = ClusterView()
    for node in given["nodes"]:
        cards = []
        for device in VENDORS["NVIDIA"].node_devices(node):
            slots, memory, core = used[device.uuid]
            usage = DeviceUsage(
                device=device,
                used_slots=slots,
                used_memory_mib=memory,
                used_core_percent=core,
            )
            cards.append(CardState(usage, 1))
        view.set_node(node["metadata"]["name"], cards)
    return view


def without_empty_entries(text: str) -> str:
    """The slices alone: HAMi loses the entries of containers without a card (its surprise S1)."""
    return text.replace(";", "")


def test_verdicts_cards_and_reasons_are_those_of_hami() -> None:
    for line in recorded.lines("filter-nvidia.jsonl"):
        request = pod_request(line["in"]["pod"], VENDORS)
        expected = line["expect"]
        if not request.wants_devices:
            assert expected["chosen"] == "unfiltered", line["name"]
            continue
        view = view_of(line["in"])
        found = feasible(request, view)
        for node, answer in expected["nodes"].items():
            where = f"{line['name']} on {node}"
            placement = found.placements.get(NodeName(node))
            if not answer["fits"]:
                assert found.refusal.reasons[NodeName(node)] == answer["reason"], where
                continue
            assert placement is not None, where
            ours = keys.encode_pod_devices(placement.containers, "NVIDIA")
            theirs = answer["annotations"][keys.NVIDIA_ALLOCATED]
            assert without_empty_entries(ours) == without_empty_entries(theirs), where
            asking = [container for container in request.containers if container.requests]
            if len(asking) == len(request.containers):
                assert ours == theirs, where


def test_the_chosen_node_is_hamis_or_scores_the_same() -> None:
    for line in recorded.lines("filter-nvidia.jsonl"):
        request = pod_request(line["in"]["pod"], VENDORS)
        if not request.wants_devices:
            continue
        decision = decide(request, view_of(line["in"]))
        theirs = line["expect"]["chosen"]
        if theirs is None:
            assert decision.placement is None, line["name"]
            continue
        assert decision.placement is not None, line["name"]
        # HAMi breaks ties at random.
        assert decision.placement.score == pytest.approx(decision.scores[theirs]), line["name"]
