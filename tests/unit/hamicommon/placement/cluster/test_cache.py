"""A view that remembers answers gives the same ones as a view that has never been asked."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.cache import Answers, Memory
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen, VendorRules
from hamicommon.vendors.pod_request import pod_request

from tests.reference.random import generate
from tests.unit.hamicommon.placement.clusters import card, cards, pod
from tests.unit.hamicommon.placement.test_vendor_policy import take_first, x, x_card
from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = every_vendor()
N = NodeName("n")


class Asking:
    """A vendor's chooser that counts the nodes it is asked of."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def __call__(self, ask: NodeAsk) -> Chosen | NotChosen:
        self.nodes.append(ask.cards[0].device.uuid)
        return take_first(ask)


def counting_view(*nodes: str, used: int = 0) -> tuple[ClusterView, Asking]:
    chooser = Asking()
    view = ClusterView({"X": VendorRules(chooser=chooser, chooser_decides=True)})
    for name in nodes:
        view.set_node(NodeName(name), [CardState(x_card(f"x-{name}", used=(used, 0, 0)), 1)])
    return view, chooser


def use(view: ClusterView, uuid: str, slots: int, version: int) -> None:
    assert view.apply(GpuUuid(uuid), slots=slots, memory_mib=0, core_percent=0, version=version)


def test_only_nodes_that_changed_are_asked_again() -> None:
    view, chooser = counting_view("a", "b", "c")
    decide(pod(x()), view)
    chooser.nodes.clear()

    use(view, "x-b", 3, version=2)
    placement = decide(pod(x()), view).placement

    assert placement is not None
    assert placement.node == "b"
    # Once whether it fits, once which cards it gives.
    assert chooser.nodes == ["x-b", "x-b"]


def test_another_shape_of_pod_is_asked_of_every_node() -> None:
    view, chooser = counting_view("a", "b")
    decide(pod(x()), view)
    chooser.nodes.clear()

    decide(pod(x(memory_mib=5)), view)

    assert {"x-a", "x-b"} <= set(chooser.nodes)


def test_a_refusal_is_remembered_with_its_reasons() -> None:
    view, chooser = counting_view("a", "b", used=10)
    first = decide(pod(x()), view).refusal
    chooser.nodes.clear()

    again = decide(pod(x()), view).refusal

    assert first is not None
    assert again is not None
    assert (
        again.reasons
        == first.reasons
        == dict.fromkeys(("a", "b"), "1/1 ModeNotFit, 2/1 CardUnhealthy")
    )
    assert chooser.nodes == []


def test_a_card_left_out_is_forgotten_with_the_decision() -> None:
    view, _ = counting_view("a")
    left_out = decide(pod(x()), view, without_cards=[GpuUuid("x-a")])

    assert left_out.refusal is not None
    assert decide(pod(x()), view).placement is not None
    assert decide(pod(x()), view, without_cards=[GpuUuid("x-a")]).placement is None


def test_a_node_in_the_place_of_one_that_went_is_asked() -> None:
    view, _ = counting_view("a")
    assert decide(pod(x()), view).placement is not None

    view.remove_node(NodeName("a"))
    view.set_node(NodeName("b"), [CardState(x_card("x-b", used=(10, 0, 0)), 1)])

    assert decide(pod(x()), view).placement is None


def test_shapes_that_were_not_asked_for_long_are_forgotten() -> None:
    memory = Memory()
    oldest = memory.answers("oldest", 1)
    used: list[Answers] = [memory.answers("used", 1)]
    for number in range(100):
        memory.answers(number, 1)
        used.append(memory.answers("used", 1))

    assert memory.answers("oldest", 1) is not oldest
    assert all(each is used[0] for each in used)


def test_a_container_after_one_that_took_cards_is_asked_again() -> None:
    view, chooser = counting_view("a")
    two = pod(x(), x())
    decide(two, view)
    chooser.nodes.clear()

    placement = decide(two, view).placement

    assert placement is not None
    assert [share.detail["holds"] for c in placement.containers for share in c.shares] == [0, 1]
    assert chooser.nodes


def test_cards_of_the_standard_loop_are_asked_of_nobody() -> None:
    view, chooser = counting_view("a")
    view.set_node(N, [CardState(card("g"), 1)])

    assert decide(pod(cards(memory_mib=1)), view).placement is not None
    assert chooser.nodes == []


def answer(request: PodRequest, view: ClusterView, left_out: list[GpuUuid]) -> object:
    decision = decide(request, view, without_cards=left_out)
    refusal = decision.refusal
    reasons = (refusal.reasons, dict(refusal.shortfalls)) if refusal else None
    return decision.placement, decision.scores, reasons


def states(r: Random, node: dict[str, object], vendors: list[str]) -> list[CardState]:
    """The node's cards, some of them in use."""
    found = []
    for vendor in vendors:
        for device in VENDORS[vendor].node_devices(node):
            slots = r.choice([0, 0, 1])
            usage = DeviceUsage(
                device=device,
                used_slots=slots,
                used_memory_mib=slots * r.choice([device.memory_mib, device.memory_mib // 4]),
                used_core_percent=slots * r.choice([device.core_percent, 1]),
                cordoned=r.random() < 0.05,
            )
            found.append(CardState(usage, 1))
    return found


@pytest.mark.parametrize("vendor", sorted(map(str, VENDORS.rules)))
def test_after_any_changes_the_answers_are_those_of_a_view_that_was_never_asked(
    vendor: str,
) -> None:
    r, versions = Random(vendor), count(2)
    view = ClusterView(VENDORS.rules)
    asked: list[PodRequest] = []
    while len(asked) < 4:
        try:
            request = pod_request(generate.asking(r, [], [vendor]), VENDORS)
        except InvalidRequest:
            continue
        if request.wants_devices:
            asked.append(request)
    for step in range(15):
        name = NodeName(f"n{r.randrange(5)}")
        known = view.cards(name)
        if not known or r.random() < 0.2:
            view.set_node(name, states(r, generate.node(r, name, [vendor]), [vendor]))
        elif r.random() < 0.1:
            view.remove_node(name)
        else:
            usage = r.choice(known).usage
            slots = r.choice([0, usage.used_slots + 1])
            view.apply(
                usage.device.uuid,
                slots=slots,
                memory_mib=slots * usage.device.memory_mib // 4,
                core_percent=slots * r.choice([0, 1, 5]),
                version=next(versions) + 100 * step,
            )
        fresh = ClusterView(VENDORS.rules)
        for node in view.nodes:
            fresh.set_node(node, view.cards(node))
        every = [state.usage.device.uuid for node in view.nodes for state in view.cards(node)]
        left_out = r.sample(every, 1) if every and r.random() < 0.2 else []
        for request in asked:
            assert answer(request, view, left_out) == answer(request, fresh, left_out)
