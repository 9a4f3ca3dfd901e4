"""Requests that can never fit are reported; those that fit after a pod ends are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hamicommon.admission import idle_cards
from hamicommon.admission.idle_cards import IdleCards
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import (
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
    Knowledge,
    NeverFits,
)
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.unit.devices import a_device

VENDORS = Vendors.from_config(DeviceConfig())
GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
TYPE = "NVIDIA A100-SXM4-80GB"


def card(node: str, index: int, *, memory_mib: int = 81920, kind: str = TYPE) -> GpuDevice:
    return a_device(f"GPU-{node}-{index}", index=index, type=kind, memory_mib=memory_mib)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no busy machine end the search for requests that fit."""
    monkeypatch.setattr(idle_cards, "SEARCH_BUDGET_S", 60.0)


@pytest.fixture
def cards() -> IdleCards:
    """Two equal nodes with four cards each, and one with a smaller card."""
    found = IdleCards(VENDORS)
    for node in ("a", "b"):
        found.set_node(NodeName(node), [card(node, index) for index in range(4)])
    found.set_node(NodeName("c"), [card("c", 0, memory_mib=24576, kind="NVIDIA A10")])
    return found


def pod(limits: Json, annotations: Json | None = None) -> Json:
    return {
        "metadata": {"name": "p", "namespace": "ns", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


def judge_pod(
    given: Json, cards: IdleCards, never_fits: NeverFits = "deny", **known: Any
) -> AdmissionResult:
    rules = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler", never_fits=never_fits)
    return mutate(given, rules, AdmissionCircumstances(knowledge=Knowledge(cards=cards, **known)))


@pytest.mark.parametrize(
    ("limits", "annotations", "parts"),
    [
        (
            {GPU: 1, MEM: 90000},
            {},
            ("1 NVIDIA card with 90000 MiB", "the largest has 81920 MiB", f"{MEM} <= 81920 MiB"),
        ),
        ({GPU: 5, MEM: 1000}, {}, ("no node has 5 cards", "the largest has 4", f"{GPU} <= 4")),
        (
            {GPU: 1, MEM: 1000},
            {"nvidia.com/use-gputype": "H200"},
            ("annotation nvidia.com/use-gputype 'H200'", "NVIDIA A10", "A100"),
        ),
        (
            {GPU: 1, MEM: 1000},
            {"nvidia.com/use-gpuuuid": "GPU-nobody"},
            ("annotation nvidia.com/use-gpuuuid 'GPU-nobody'", "fits without the wanted card uuid"),
        ),
        (
            {GPU: 1, MEM: 40000},
            {"nvidia.com/use-gputype": "A10,H200", "nvidia.com/nouse-gputype": "A100"},
            ("40000 MiB", "24576"),
        ),
    ],
    ids=[
        "more memory than any card",
        "more cards than any node",
        "a type nobody has",
        "a uuid nobody has",
        "more memory than any card of the type",
    ],
)
def test_what_no_node_can_take_is_denied_with_the_way_out(
    cards: IdleCards, limits: Json, annotations: Json, parts: tuple[str, ...]
) -> None:
    verdict = judge_pod(pod(limits, annotations), cards)

    assert (verdict.allowed, verdict.code, verdict.reason) == (False, 403, "never-fits")
    assert verdict.message.startswith("no node can take a pod that asks for ")
    for each in parts:
        assert each in verdict.message
    assert "pod ends" not in verdict.message


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({GPU: 4, MEM: 81920}, {}),
        ({GPU: 1, MEM: 20000}, {"nvidia.com/use-gputype": "A10"}),
        ({GPU: 1, MEM: 20000}, {"nvidia.com/use-gpuuuid": "GPU-b-3"}),
        ({GPU: 4, MEM: 20000}, {"nvidia.com/nouse-gpuuuid": "GPU-a-0"}),
    ],
    ids=["the whole node", "a type of one node", "one card of a node like others", "one left out"],
)
def test_what_an_idle_node_can_take_is_admitted(
    cards: IdleCards, limits: Json, annotations: Json
) -> None:
    verdict = judge_pod(pod(limits, annotations), cards)

    assert verdict.allowed, verdict.message
    assert verdict.audit["cards"] == "known"


def test_by_default_the_user_is_warned(cards: IdleCards) -> None:
    verdict = judge_pod(pod({GPU: 1, MEM: 90000}), cards, "warn")

    assert verdict.allowed
    assert "the largest has 81920 MiB" in verdict.warnings[0]
    assert judge_pod(pod({GPU: 1, MEM: 90000}), cards, "off").warnings == ()


def test_a_sick_card_may_be_healthy_when_the_pod_comes(cards: IdleCards) -> None:
    cards.set_node(NodeName("d"), [replace(card("d", 0, memory_mib=100_000), healthy=False)])

    assert judge_pod(pod({GPU: 1, MEM: 90000}), cards).allowed


def test_what_is_known_changes_with_the_nodes(cards: IdleCards) -> None:
    asking = pod({GPU: 1, MEM: 90000})
    assert not judge_pod(asking, cards).allowed

    cards.set_node(NodeName("d"), [card("d", 0, memory_mib=100_000)])
    assert judge_pod(asking, cards).allowed
    cards.remove_node(NodeName("d"))
    assert not judge_pod(asking, cards).allowed


@pytest.mark.parametrize(
    ("limits", "known", "unknown"),
    [
        ({"hygon.com/dcunum": 1, "hygon.com/dcumem": 1}, {}, "no node has reported a card of DCU"),
        (
            {GPU: 1, MEM: 90000},
            {"foreign_vendors": frozenset({"NVIDIA"})},
            "nodes without our agent have cards of NVIDIA",
        ),
    ],
    ids=["a vendor of which no card is known", "cards on nodes without our agent"],
)
def test_what_is_known_in_part_refuses_nobody_and_the_audit_shows_it(
    cards: IdleCards, limits: Json, known: Json, unknown: str
) -> None:
    verdict = judge_pod(pod(limits), cards, **known)

    assert verdict.allowed
    assert verdict.audit["cards"] == f"unknown: {unknown}"


def test_nodes_alike_are_asked_once_and_the_answer_is_remembered(
    cards: IdleCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counting(request: Any, view: Any, candidates: Any) -> Any:
        asked.append(len(candidates))
        return decide(request, view, candidates=candidates)

    decide = idle_cards.decide
    monkeypatch.setattr(idle_cards, "decide", counting)
    request = pod_request(pod({GPU: 1, MEM: 1000}), VENDORS)

    assert [cards.never_fits_reason(request) for _ in range(3)] == ["", "", ""]
    assert asked == [2]
