"""The engine honours a vendor's rules for its cards (`VendorRules`)."""

from collections.abc import Mapping, Sequence

import pytest
from hamicommon.domain.allocations import DeviceShare, Placement
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide, feasible, place
from hamicommon.placement.rules import Rule
from hamicommon.placement.unschedulable import Refusal
from hamicommon.placement.vendor_policy import (
    STANDARD_ORDER,
    Chosen,
    Need,
    NodeAsk,
    NotChosen,
    VendorRules,
)

from tests.unit.devices import a_device
from tests.unit.hamicommon.placement.clusters import card, cards, container, pod

N = NodeName("n")


def view_of(nodes: Mapping[str, Sequence[DeviceUsage]], **rules: VendorRules) -> ClusterView:
    view = ClusterView(rules)
    for name, usages in nodes.items():
        view.set_node(NodeName(name), [CardState(usage, 1) for usage in usages])
    return view


def x_card(uuid: str, **given) -> DeviceUsage:
    return card(uuid, vendor="X", **{"type": "X", **given})


def x(count: int = 1, **given) -> DeviceRequest:
    return DeviceRequest(vendor="X", count=count, **given)


def pick_shares(request: PodRequest, view: ClusterView) -> list[list[DeviceShare]]:
    answer = place(request, view)
    assert isinstance(answer, Placement), answer
    return [list(c.shares) for c in answer.containers]


def uuids(request: PodRequest, view: ClusterView) -> list[list[str]]:
    return [[share.uuid for share in shares] for shares in pick_shares(request, view)]


def reason(request: PodRequest, view: ClusterView, node: str = "n") -> str:
    answer = place(request, view)
    assert isinstance(answer, Refusal), answer
    return answer.reasons[NodeName(node)]


def take_first(ask: NodeAsk) -> Chosen | NotChosen:
    """The cards from the least preferred end, if they fit."""
    fitting = [c for c, rule in zip(ask.cards, ask.rules, strict=True) if rule == Rule.FITS]
    if len(fitting) < ask.request.count:
        return NotChosen(reasons={"ModeNotFit": 1, "CardUnhealthy": 2})
    chosen = fitting[::-1][: ask.request.count]
    return Chosen(
        shares=tuple(
            DeviceShare(
                uuid=usage.device.uuid,
                vendor=ask.request.vendor,
                memory_mib=7,
                core_percent=3,
                slots=2,
                detail={"holds": len(usage.holdings)},
            )
            for usage in chosen
        )
    )


def test_a_rule_that_is_not_in_the_order_does_not_apply() -> None:
    full = x_card("x", used=(1, 8000, 0))
    without_memory = tuple(rule for rule in STANDARD_ORDER if rule != Rule.MEMORY)

    assert reason(pod(x(memory_mib=1)), view_of({"n": [full]})) == "1/1 CardInsufficientMemory"
    relaxed = view_of({"n": [full]}, X=VendorRules(order=without_memory))
    assert uuids(pod(x(memory_mib=1)), relaxed) == [["x"]]


def test_the_first_rule_in_the_vendors_order_is_the_reason() -> None:
    sick_and_other = x_card("x", healthy=False)
    use = {"X": Selection(use_types=("Y",))}
    request = pod(x())
    request = PodRequest(
        uid=request.uid,
        namespace="default",
        name="p",
        containers=request.containers,
        selections=use,
    )

    assert reason(request, view_of({"n": [sick_and_other]})) == "1/1 CardNotHealth"
    type_first = VendorRules(order=(Rule.TYPE, Rule.NOT_HEALTHY, Rule.SLOTS))
    assert reason(request, view_of({"n": [sick_and_other]}, X=type_first)) == "1/1 CardTypeMismatch"


def test_a_card_that_is_given_whole_is_refused_while_it_is_in_use() -> None:
    whole = VendorRules(order=(Rule.NOT_HEALTHY, Rule.TYPE, Rule.IN_USE))
    view = view_of({"n": [x_card("x", used=(1, 0, 0))]}, X=whole)

    assert reason(pod(x()), view) == "1/1 ExclusiveDeviceAllocateConflict"


def test_what_a_slice_needs_is_asked_once_per_kind_of_card() -> None:
    asked: list[GpuDevice] = []

    def need(request: DeviceRequest, selection: Selection, model: GpuDevice) -> Need:
        asked.append(model)
        return Need(model.memory_mib // model.info["parts"], 10, slots=3)

    usages = [
        DeviceUsage(
            device=a_device(
                f"x{i}",
                index=i,
                vendor="X",
                type="X",
                slots=4,
                memory_mib=800,
                numa=i % 2,
                info={"parts": 2 + i % 2},
            )
        )
        for i in range(8)
    ]
    view = view_of({"n": usages}, X=VendorRules(need=need))

    (shares,) = pick_shares(pod(x(2)), view)
    assert [(s.uuid, s.memory_mib, s.core_percent, s.slots) for s in shares] == [
        ("x7", 266, 10, 3),
        ("x5", 266, 10, 3),
    ]
    assert {model.info["parts"] for model in asked} == {2, 3}
    assert {model.uuid for model in asked} == {""}


def test_cores_may_be_counted_in_another_unit_than_the_card_registers() -> None:
    def percent(request: DeviceRequest, selection: Selection, model: GpuDevice) -> Need:
        return Need(1, request.core_percent, of_core=100)

    view = view_of(
        {"n": [x_card("x", core_percent=20, used=(1, 0, 60))]}, X=VendorRules(need=percent)
    )
    assert uuids(pod(x(core_percent=40)), view) == [["x"]]
    assert reason(pod(x(core_percent=41)), view) == "1/1 CardInsufficientCore"


def test_the_share_carries_the_type_that_the_vendor_writes() -> None:
    view = view_of(
        {"n": [x_card("x", type="Product 9")]},
        X=VendorRules(share_type=lambda model: model.type),
    )
    assert pick_shares(pod(x()), view)[0][0].type == "Product 9"


def test_all_containers_of_a_pod_are_on_one_card_where_the_vendor_wants_it() -> None:
    view = view_of(
        {"n": [x_card(f"x{i}", index=i) for i in range(3)]}, X=VendorRules(same_card=True)
    )

    assert uuids(pod(x(), x(), x()), view) == [["x2"], ["x2"], ["x2"]]
    assert reason(pod(x(2), x()), view) == "3/3 CardNotFoundCustomFilterRule"
    small = view_of(
        {"n": [x_card("x0"), x_card("x1", index=1, slots=1)]}, X=VendorRules(same_card=True)
    )
    assert reason(pod(x(), x(), gpu=["binpack"]), small) == (
        "1/2 CardNotFoundCustomFilterRule, 1/2 CardTimeSlicingExhausted"
    )


def test_one_card_per_pod_is_asked_only_of_cards_typed_as_the_vendors_name() -> None:
    view = view_of(
        {"n": [x_card(f"x{i}", index=i, slots=1, type="X 900") for i in range(2)]},
        X=VendorRules(same_card=True),
    )
    assert uuids(pod(x(), x()), view) == [["x1"], ["x0"]]


def test_a_chooser_that_does_not_decide_is_asked_of_the_chosen_node_alone() -> None:
    asked: list[NodeAsk] = []

    def choose(ask: NodeAsk) -> Chosen | NotChosen:
        asked.append(ask)
        return take_first(ask)

    nodes = {f"n{i}": [x_card(f"x{i}{j}", index=j) for j in range(3)] for i in range(5)}
    view = view_of(nodes, X=VendorRules(chooser=choose))

    (shares,) = pick_shares(pod(x(2)), view)
    assert [(s.uuid, s.memory_mib, s.core_percent, s.slots) for s in shares] == [
        ("x00", 7, 3, 2),
        ("x01", 7, 3, 2),
    ]
    assert len(asked) == 1
    assert [usage.device.uuid for usage in asked[0].cards] == ["x02", "x01", "x00"]


def test_a_chooser_that_decides_is_asked_of_every_node_it_applies_to() -> None:
    def choose(ask: NodeAsk) -> Chosen | NotChosen:
        if ask.cards[0].device.uuid == "odd":
            return NotChosen(reasons={"ModeNotFit": 1, "CardUnhealthy": 2}, total=7)
        return take_first(ask)

    def applies(request: DeviceRequest, selection: Selection, models: Sequence[GpuDevice]) -> bool:
        return any(model.mode == "odd" for model in models)

    view = view_of(
        {"a": [x_card("odd", mode="odd")], "b": [x_card("plain")], "c": [x_card("o", mode="odd")]},
        X=VendorRules(chooser=choose, chooser_decides=True, applies=applies),
    )
    found = feasible(pod(x()), view)

    assert {name: p.containers[0].shares[0].slots for name, p in found.placements.items()} == {
        "b": 1,
        "c": 2,
    }
    assert found.refusal.reasons == {"a": "1/7 ModeNotFit, 2/7 CardUnhealthy"}


def test_a_refusal_of_the_chooser_may_be_without_counts() -> None:
    rules = VendorRules(chooser=lambda ask: NotChosen(uncounted="as it is"), chooser_decides=True)

    assert reason(pod(x()), view_of({"n": [x_card("x")]}, X=rules)) == "as it is"


def test_later_containers_meet_what_earlier_ones_took_and_what_cards_hold() -> None:
    asked: list[NodeAsk] = []

    def choose(ask: NodeAsk) -> Chosen | NotChosen:
        asked.append(ask)
        return take_first(ask)

    view = view_of({"n": [x_card("x")]}, X=VendorRules(chooser=choose))
    view.apply(
        GpuUuid("x"), slots=1, memory_mib=5, core_percent=5, version=2, holdings=[{"holds": 9}]
    )
    (alone,), (sidecar,), (beside,), (main,) = pick_shares(
        pod(
            container(x(), role="init"),
            container(x(), role="sidecar"),
            container(x(), role="init"),
            container(x()),
        ),
        view,
    )

    assert [share.detail["holds"] for share in (alone, sidecar, beside, main)] == [1, 1, 2, 2]
    later = [each for each in asked if each.earlier]
    assert {each.earlier for each in later} == {(sidecar,)}
    for each in later:
        met = each.cards[0]
        assert (met.used_slots, met.used_memory_mib, met.used_core_percent) == (3, 12, 8)


def test_a_chooser_may_take_one_card_several_times_where_the_vendor_allows_it() -> None:
    def twice(ask: NodeAsk) -> Chosen | NotChosen:
        usage = ask.cards[0]
        if usage.device.slots - usage.used_slots < ask.request.count:
            return NotChosen(reasons={"CardTimeSlicingExhausted": 1})
        share = DeviceShare(uuid=usage.device.uuid, vendor="X", memory_mib=1, core_percent=1)
        return Chosen(shares=(share,) * ask.request.count)

    nodes = {"n": [x_card("x", slots=4)]}
    rules = VendorRules(chooser=twice, chooser_decides=True, reuses_card=True)

    assert uuids(pod(x(3)), view_of(nodes, X=rules)) == [["x", "x", "x"]]
    assert uuids(pod(x(2), x(2)), view_of(nodes, X=rules)) == [["x", "x"], ["x", "x"]]
    assert reason(pod(x(2), x(3)), view_of(nodes, X=rules)) == "1/1 CardTimeSlicingExhausted"
    strict = VendorRules(chooser=twice, chooser_decides=True)
    assert reason(pod(x(3)), view_of(nodes, X=strict)) == "NodeInsufficientDevice"


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "b"), ("spread", "a")])
def test_a_vendors_score_is_added_to_the_nodes(policy: str, chosen: str) -> None:
    def score(
        before: Sequence[DeviceUsage],
        containers: Sequence[Sequence[DeviceShare]],
        selection: Selection,
        node_policy: str,
    ) -> float:
        assert node_policy == policy
        (share,) = containers[0]
        assert share.uuid in [usage.device.uuid for usage in before]
        return 100.0 if share.uuid.startswith("b") else 5.0

    view = view_of(
        {"a": [x_card("a0", used=(5, 0, 0)), card("a1")], "b": [x_card("b0"), card("b1")]},
        X=VendorRules(scorer=score),
    )
    decision = decide(pod(x(), node=policy), view)

    assert decision.placement is not None
    assert decision.placement.node == chosen
    assert decision.scores == {"a": 5 + 10 * 5 / 20, "b": 100}
    assert decision.placement.score == decision.scores[NodeName(chosen)]
    assert feasible(pod(x(), node=policy), view).placements[NodeName("b")].score == 100


def test_a_score_may_count_only_where_the_vendor_is_alone() -> None:
    rules = VendorRules(scorer=lambda *asked: 100.0, scores_alone=True)
    view = view_of({"mixed": [x_card("x0"), card("g")], "own": [x_card("x1")]}, X=rules)

    scores = {name: one.score for name, one in feasible(pod(x()), view).placements.items()}
    assert scores == {"mixed": 0, "own": 100}


def test_the_vendors_of_one_container_are_each_given_their_own_cards() -> None:
    view = view_of({"n": [card("g"), x_card("x")], "m": [card("h"), card("i")]})
    request = pod(container(cards(memory_mib=10), x(memory_mib=20)))

    assert [(s.vendor, s.uuid, s.memory_mib) for s in pick_shares(request, view)[0]] == [
        ("NVIDIA", "g", 10),
        ("X", "x", 20),
    ]
    assert feasible(request, view).refusal.reasons == {"m": "NodeInsufficientDevice"}


def test_reasons_count_the_cards_of_the_vendor_alone() -> None:
    view = view_of({"n": [card("g"), card("h"), x_card("x", used=(1, 8000, 0))]})

    assert reason(pod(cards(memory_mib=10), x(memory_mib=20)), view) == "1/1 CardInsufficientMemory"


def test_cards_alike_but_for_the_vendors_facts_are_distinguished_and_forgotten_when_gone() -> None:
    view = view_of({"n": [x_card("x0"), x_card("x1"), card("g")]})
    assert len({model for model in view.models if model}) == 2

    view.set_node(N, [CardState(x_card("x9", memory_mib=5), 1)])
    assert [model.memory_mib for model in view.models if model] == [5]
    view.remove_node(N)
    assert not any(view.models)
