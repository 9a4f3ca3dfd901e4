"""Refusals of cards that fit one by one: the sentence names the limit and how many would fit.

Every rule that can refuse a card occurs here or in `RULES`, and has its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.explain.answer import Findings, findings
from hamicommon.explain.counterfactuals import Circumstances
from hamicommon.explain.record import DecisionRecord
from hamicommon.explain.sentences import refusal_sentence, stock_of
from hamicommon.explain.unscheduled import why_undecided
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.rules import AGENT_SILENT, Rule
from hamicommon.placement.unschedulable import Refusal
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.explain.test_counterfactuals import NAMES
from tests.unit.hamicommon.placement import clusters
from tests.unit.hamicommon.placement.clusters import card, cards, container, pod
from tests.unit.hamicommon.simulation.objects import every_vendor

N = NodeName("n")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VENDORS = every_vendor()
HALVES = (
    MigProfile(
        name="3g.20gb",
        memory_mib=20096,
        core_percent=43,
        slice_count=3,
        placements=((0, 4), (4, 4)),
    ),
)


def new_view() -> ClusterView:
    return ClusterView(VENDORS.rules)


def view_of(usages: Sequence[DeviceUsage]) -> ClusterView:
    view = new_view()
    view.set_node(N, [CardState(usage, 1) for usage in usages])
    return view


def refusal_on(
    request: PodRequest, usages: Sequence[DeviceUsage], without: Sequence[GpuUuid] = ()
) -> Refusal:
    refusal = decide(request, view_of(usages), without_cards=without).refusal
    assert refusal is not None
    return refusal


def sentence(
    request: PodRequest, usages: Sequence[DeviceUsage], without: Sequence[GpuUuid] = ()
) -> str:
    tables = refusal_on(request, usages, without).shortfalls.tables
    stock = stock_of(usage.device for usage in usages)
    return refusal_sentence(request, tables, stock, candidates=1)


def findings_of(
    request: PodRequest,
    view: ClusterView,
    reasons: Mapping[NodeName, str] | None = None,
    new: Callable[[], ClusterView] = ClusterView,
    about: Circumstances = Circumstances(),  # noqa: B008 (nobody changes it)
    **fields: Any,
) -> Findings:
    """Explain the request's refusal; `reasons`: in place of the engine's own."""
    if reasons is None:
        refusal = decide(request, view).refusal
        assert refusal is not None
        reasons = refusal.reasons
    record = DecisionRecord(
        request=request,
        outcome="refused",
        view=view,
        node=None,
        reasons=reasons,
        **dict.fromkeys(("message", "summary", "trace_id"), ""),
        candidates=max(1, len(reasons)),
        **dict.fromkeys(("decided_at", "detail_at", "last_at"), NOW),
        repeat_count=1,
        view_version=view.version,
        **fields,
    )
    return findings(record, replace(about, names=NAMES), new)


def node_text(request: PodRequest, usages: Sequence[DeviceUsage]) -> str:
    """Return the node's text in explain."""
    [node] = findings_of(request, view_of(usages), new=new_view).nodes
    return node.text


def several(
    vendor: str, number: int, *, used: Mapping[int, int] | None = None, **fields: Any
) -> list[DeviceUsage]:
    """Cards 0 to `number` of a vendor; `used`: slots in use, by index."""
    values = {"slots": 4, "memory_mib": 98304, "core_percent": 100, "type": vendor} | fields
    return [
        DeviceUsage(
            device=GpuDevice(uuid=GpuUuid(f"c{index}"), index=index, vendor=vendor, **values),
            used_slots=(used or {}).get(index, 0),
        )
        for index in range(number)
    ]


def asks(vendor: str, count: int = 1, **fields: Any) -> DeviceRequest:
    return DeviceRequest(vendor=vendor, count=count, **fields)


def selecting(request: PodRequest, vendor: str, **traits: str) -> PodRequest:
    return replace(request, selections={vendor: Selection(traits=traits)})


def mig_card(*starts: int) -> DeviceUsage:
    """A MIG card that can be cut in halves; a small instance stands at each of `starts`."""
    taken = len(starts)
    usage = card("g", mode="mig", memory_mib=40960, used=(taken, 4864 * taken, 15 * taken))
    held = [{"profile": "1g.5gb", "placement": {"start": start, "size": 1}} for start in starts]
    return replace(usage, device=replace(usage.device, mig_profiles=HALVES), holdings=tuple(held))


NUMA = [card(f"g{n}", index=n, numa=n // 2) for n in range(4)]
BOUND = Selection(numa_bind=True)
WAIT = "; ask for fewer cards, or wait until a pod ends"


@pytest.mark.parametrize(
    ("request_", "usages", "expected", "of_node"),
    [
        pytest.param(
            pod(cards(memory_mib=1, count=3), selection=BOUND),
            NUMA,
            "no node has 3 cards that fit on one NUMA node: the best has 2 of 4 that fit",
            "2 cards of the 3 wanted fit on one NUMA node",
            id="NUMA",
        ),
        pytest.param(
            pod(cards(memory_mib=5000, count=2), selection=BOUND),
            [card("a", numa=0), card("b", numa=1), card("c", numa=1, used=(1, 4000, 0))],
            "no node has 2 cards that fit on one NUMA node: the best has 1 of 2 that fit "
            "(1 with too little free memory of 3 cards on 1 node)",
            "1 card: at most 4000 MiB free, 5000 MiB wanted; "
            "1 card of the 2 wanted fit on one NUMA node",
            id="NUMA, and a full card",
        ),
        pytest.param(
            pod(cards(memory_mib=1, count=4), selection=BOUND),
            [*NUMA, replace(mig_card(0, 4), device=replace(mig_card(0, 4).device, numa=1))],
            "no node has 4 cards that fit on one NUMA node: the best has 2 of 4 that fit "
            "(1 without a free place for a MIG instance of that size of 5 cards on 1 node)",
            "1 card: without a free place for a MIG instance of that size; "
            "2 cards of the 4 wanted fit on one NUMA node",
            id="NUMA beside MIG",
        ),
        pytest.param(
            pod(cards(memory_mib=20000, count=3)),
            [mig_card()],
            "no node has 3 cards that fit as MIG instances: the best has 2",
            "2 cards of the 3 wanted fit as MIG instances",
            id="MIG instances",
        ),
        pytest.param(
            pod(asks("kunlun", 4, memory_percent=100)),
            several("kunlun", 8, used={0: 1, 4: 1, 5: 1, 6: 1, 7: 1}, slots=100),
            "no node has 4 cards that fit as linked cards (1, 2, 4 or 8 of them): "
            "the best has 2 of 3 that fit "
            "(5 in use, while the vendor gives whole cards only of 8 cards on 1 node)",
            "5 cards: in use, while the vendor gives whole cards only; "
            "2 cards of the 4 wanted fit as linked cards (1, 2, 4 or 8 of them)",
            id="Kunlun",
        ),
        pytest.param(
            pod(asks("AWSNeuron", 4)),
            several(
                "AWSNeuron",
                8,
                used={1: 1, 4: 1},
                slots=2,
                core_percent=3,
                info={"AWSNodeType": "inf2"},
            ),
            "no node has 4 cards that fit as free neighbours: the best has 3 of 6 that fit "
            "(2 in use, while the vendor gives whole cards only of 8 cards on 1 node)",
            "2 cards: in use, while the vendor gives whole cards only; "
            "3 cards of the 4 wanted fit as free neighbours",
            id="Neuron",
        ),
        pytest.param(
            pod(asks("AWSNeuron", 3, traits={"cores": "6"})),
            several("AWSNeuron", 8, slots=4, core_percent=15, info={"AWSNodeType": "inf1"}),
            "no node has 3 cards that fit as whole devices of 4 cores: "
            "the best has 2 of 8 that fit",
            "2 cards of the 3 wanted fit as whole devices of 4 cores",
            id="Neuron cores",
        ),
        pytest.param(
            pod(asks("Ascend910C", 4, memory_mib=65536)),
            several("Ascend910C", 6, used={0: 1, 2: 1}, slots=1, memory_mib=65536),
            "no node has 4 cards that fit in whole modules of two chips: the best has 2 of 4 that "
            "fit (2 with all slots taken of 6 cards on 1 node)",
            "2 cards: its only slot taken; "
            "2 cards of the 4 wanted fit in whole modules of two chips",
            id="Ascend",
        ),
    ],
)
def test_a_limit_on_cards_together_is_named_with_the_number_that_fits(
    request_: PodRequest, usages: Sequence[DeviceUsage], expected: str, of_node: str
) -> None:
    assert sentence(request_, usages) == expected + WAIT
    assert node_text(request_, usages) == of_node


def of_containers(*requests: DeviceRequest) -> PodRequest:
    return pod(*(container(each, name=f"c{n}") for n, each in enumerate(requests)))


ONLINE = {"class": "online"}
IN_USE = card("a", used=(1, 10, 10))
BY_RULE: Mapping[Rule, tuple[PodRequest, Sequence[DeviceUsage], str]] = {
    Rule.NOT_HEALTHY: (pod(cards(memory_mib=1)), [card("a", healthy=False)], "repair the cards"),
    Rule.CORDONED: (pod(cards(memory_mib=1)), [card("a", cordoned=True)], "uncordon a card"),
    Rule.TYPE: (
        pod(cards(memory_mib=1), selection=Selection(use_types=("H200",))),
        [card("a")],
        "change the pod's annotations",
    ),
    Rule.UUID: (
        pod(cards(memory_mib=1), selection=Selection(use_uuids=("b",))),
        [card("a")],
        "change the pod's annotations",
    ),
    Rule.NOT_OFFERED: (pod(cards(memory_mib=1)), [card("a")], "wait until a pod ends"),
    Rule.SLOTS: (
        pod(cards(memory_mib=1)),
        [card("a", slots=1, used=(1, 1, 1))],
        "wait until a pod ends",
    ),
    Rule.MUTEX: (pod(cards(memory_mib=1), gpu=("mutex",)), [IN_USE], "change the pod's policy"),
    Rule.MEMORY: (pod(cards(memory_mib=8000)), [IN_USE], "ask for less"),
    Rule.CORES: (pod(cards(memory_mib=1, core_percent=95)), [IN_USE], "ask for less"),
    Rule.EXCLUSIVE: (
        pod(cards(memory_mib=1, core_percent=100)),
        [card("a", used=(1, 10, 0))],
        "ask for less than 100 % of the cores",
    ),
    Rule.CORES_EXHAUSTED: (
        pod(cards(memory_mib=1)),
        [card("a", used=(1, 10, 100))],
        "wait until a pod ends",
    ),
    Rule.CARD_OF_POD: (
        of_containers(asks("Mthreads", 2, memory_mib=1), asks("Mthreads", memory_mib=1)),
        several("Mthreads", 2),
        "ask for less in all containers together",
    ),
    Rule.IN_USE: (pod(asks("kunlun", memory_percent=100)), several("kunlun", 1, used={0: 1}), ""),
    Rule.MIG_TOPOLOGY: (
        pod(cards(memory_mib=20000)),
        [mig_card(0, 4)],
        "ask for less memory, or wait until a pod ends",
    ),
    Rule.POD_CLASS: (
        selecting(pod(asks("Metax-SGPU", memory_mib=1)), "Metax-SGPU", **ONLINE),
        several("Metax-SGPU", 1, used={0: 1}),
        "wait until a pod ends",
    ),
    Rule.QOS: (
        selecting(pod(asks("Metax-SGPU", memory_mib=1)), "Metax-SGPU", qos="best-effort"),
        [
            replace(each, holdings=({"qos": "fixed-share"},))
            for each in several("Metax-SGPU", 1, used={0: 1})
        ],
        "wait until a pod ends",
    ),
    Rule.SLICE_SIZE: (
        pod(asks("XPU", memory_mib=24576)),
        [replace(each, used_memory_mib=49152) for each in several("XPU", 1, used={0: 1})],
        "wait until a pod ends",
    ),
    Rule.MODE: (
        selecting(pod(asks("Ascend910B3", memory_mib=1)), "Ascend910B3", mode="hami-core"),
        several("Ascend910B3", 1),
        "change the pod's annotations",
    ),
}


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule not in (Rule.FITS, Rule.NO_CARD)])
def test_every_rule_can_refuse_a_card_and_has_its_texts(rule: Rule) -> None:
    request, usages, helps = BY_RULE[rule]
    without = [GpuUuid("a")] if rule is Rule.NOT_OFFERED else []
    shortfalls = refusal_on(request, usages, without).shortfalls[N]
    assert {short.rule for short in shortfalls} == {rule}
    text = sentence(request, usages, without)
    assert helps in text
    assert rule.row.group in text or rule in (Rule.TYPE, Rule.MEMORY, Rule.CORES)
    [vendor] = {each.device.vendor for each in usages}
    assert VENDORS[vendor].rules.can_refuse(rule)


def test_dies_of_a_vastai_card_in_use_are_refused_by_mutex() -> None:
    dies = [
        replace(each, device=replace(each.device, info={"DeviceStrategy": "die", "AIC": "0"}))
        for each in several("Vastai", 2, used={0: 1}, slots=4)
    ]
    shortfalls = refusal_on(pod(asks("Vastai"), gpu=("mutex",)), dies).shortfalls[N]
    assert [short.rule for short in shortfalls] == [Rule.MUTEX, Rule.MUTEX]


def test_cards_of_different_numa_nodes_are_no_limit_where_too_few_fit() -> None:
    request = pod(cards(memory_mib=1, count=5), selection=BOUND)
    assert sentence(request, NUMA) == (
        "no node has 5 cards of NVIDIA: the largest has 4; ask for fewer cards"
    )


# --- a refused node in a sentence


@pytest.mark.parametrize(
    ("usages", "text"),
    [
        pytest.param([card("a")], "has 1 card of NVIDIA, 2 wanted", id="one"),
        pytest.param(
            [card(name, vendor="DCU") for name in "abc"],
            "has no card of NVIDIA, 2 wanted",
            id="another vendor's",
        ),
        pytest.param(
            [card("a", used=(1, 7999, 0)), card("b", used=(1, 7999, 0))],
            "2 cards: at most 1 MiB free, 4 MiB wanted",
            id="too full",
        ),
    ],
)
def test_a_node_shows_what_it_lacks_of_the_vendor_that_is_asked_for(
    usages: Sequence[DeviceUsage], text: str
) -> None:
    found = findings_of(pod(cards(memory_mib=4, count=2)), clusters.view_of({"n": usages}))

    assert [(one.node, one.text) for one in found.nodes] == [(NodeName("n"), text)]


def test_a_node_whose_agent_is_silent_is_no_matter_of_amounts() -> None:
    """Nothing is advised that would not help, and the engine judges nothing otherwise."""
    full = [card("b", used=(1, 8000, 0))]
    request = pod(cards(memory_mib=4))
    view = clusters.view_of({"silent": [card("a")], "full": full})
    refusal = decide(request, clusters.view_of({"full": full})).refusal
    assert refusal is not None

    def findings_with(reasons: Mapping[NodeName, str]) -> Findings:
        return findings_of(request, view, reasons)

    alone = findings_with({NodeName("silent"): AGENT_SILENT})
    assert [(one.fits, one.text) for one in alone.nodes] == [
        (False, "fits, but its node-agent is silent")
    ]
    assert (list(alone.changes), list(alone.notes)) == ([], [])

    beside = findings_with({NodeName("silent"): AGENT_SILENT, **refusal.reasons})
    assert {one.node: one.reason for one in beside.nodes} == {
        "silent": AGENT_SILENT,
        **refusal.reasons,
    }
    assert list(beside.notes) == []
    assert list(beside.changes) == list(findings_with(refusal.reasons).changes)


def test_a_cordoned_node_has_that_as_its_reason_and_no_change_of_the_pod_is_advised_for_it() -> (
    None
):
    request = pod(cards(memory_mib=4))
    full = [card("b", used=(1, 8000, 0))]
    view = clusters.view_of({"free": [card("a")], "full": full, "offered": full})
    refusal = decide(request, view, candidates=[NodeName("offered")]).refusal
    assert refusal is not None
    closed = Circumstances(cordoned=frozenset({NodeName("free"), NodeName("full")}))

    found = findings_of(request, view, refusal.reasons, about=closed)

    assert {one.node: (one.fits, one.text) for one in found.nodes} == {
        "free": (
            False,
            "fits, but is cordoned (SchedulingDisabled): `kubectl uncordon free` opens it",
        ),
        "full": (
            False,
            "is cordoned (SchedulingDisabled); 1 card: at most 0 MiB free, 4 MiB wanted",
        ),
        "offered": (False, "1 card: at most 0 MiB free, 4 MiB wanted"),
    }
    assert list(found.changes) == list(findings_of(request, view, refusal.reasons).changes)


def test_a_node_that_was_not_offered_is_not_shown_beside_offered_nodes_without_cards() -> None:
    """A selector of the pod leaves out the node whose cards would fit."""
    view = clusters.view_of({"excluded": [card("a")]})
    others = {"unregistered": [NodeName("cpu-only")], "unregistered_count": 1}
    found = findings_of(pod(cards(memory_mib=4)), view, {}, **others)

    assert (list(found.nodes), list(found.changes)) == ([], [])


# --- pods that never came show the reason themselves


SERVED = Vendors.from_config(device_config.load(None))
CARD = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def why(**changes: Any) -> str:
    pod = {
        "metadata": changes.pop("metadata", {}),
        "status": changes.pop("status", {}),
        "spec": {"schedulerName": "hami-scheduler", "containers": [CARD], **changes},
    }
    return why_undecided(pod, SERVED, "hami-scheduler")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"containers": [{"name": "c"}]}, "asks for no card", id="no resource"),
        pytest.param(
            {
                "containers": [{"name": "c"}],
                "resourceClaims": [{"name": "card"}],
                "status": {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "message": "1 cannot allocate all claims",
                        }
                    ]
                },
            },
            "asks by ResourceClaims (card), which kube-scheduler allocates first, and the ledger "
            "grants on the node; its message: 1 cannot allocate all claims; what each card",
            id="by a claim that is not allocated",
        ),
        pytest.param(
            {
                "containers": [{"name": "c"}],
                "resourceClaims": [{"name": "card"}],
                "nodeName": "n",
            },
            "node n has not prepared them",
            id="by a claim that is not prepared",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "x"}}}]},
            "can't be read",
            id="malformed",
        ),
        pytest.param({"schedulerName": "other"}, "waits for scheduler other", id="other scheduler"),
        pytest.param({"schedulerName": ""}, "default-scheduler", id="no scheduler"),
        pytest.param(
            {"schedulerName": "", "metadata": {"labels": {"hami.io/webhook": "ignore"}}},
            "its label hami.io/webhook keeps the webhook away",
            id="webhook kept away",
        ),
        pytest.param(
            {"schedulerName": "", "nodeName": "n"}, "was put on node n", id="bound past us"
        ),
        pytest.param({"schedulingGates": [{"name": "a"}]}, "scheduling gates (a)", id="gated"),
        pytest.param({"status": {"phase": "Succeeded"}}, "has ended", id="over"),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "message": "0/1 taints"}
                    ]
                }
            },
            "its message: 0/1 taints",
            id="refused before us",
        ),
        pytest.param({}, "has not tried the pod", id="nobody asked"),
    ],
)
def test_the_reason_is_in_the_pod(changes: dict[str, Any], reason: str) -> None:
    assert reason in why(**changes)
