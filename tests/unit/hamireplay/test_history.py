"""A dump of a cluster's history: it is read as it was written, and mistakes are one sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hamicommon.domain.devices import GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, HostRequest, Selection
from hamicommon.errors import InvalidRequest
from hamireplay.churn import run_churn
from hamireplay.history import (
    NodeLine,
    Period,
    PodHistory,
    PodLine,
    encode_lines,
    nodes_with_cards,
    read_history,
)
from hamireplay.policies import ENGINE, cluster_under
from hamireplay.schedule import as_it_was

from tests.unit.hamicommon.simulation.objects import every_vendor

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
PERIOD = Period(since=SINCE, until=SINCE + timedelta(seconds=1000))


def card(uuid: str, **more: object) -> GpuDevice:
    values: dict[str, object] = {
        "index": 0,
        "vendor": "NVIDIA",
        "type": "NVIDIA A100",
        "slots": 10,
        "memory_mib": 40_000,
        "core_percent": 100,
    }
    return GpuDevice(uuid=GpuUuid(uuid), **(values | more))  # type: ignore[arg-type]


def asking(uid: str, *requests: DeviceRequest, arrived: float = 0, **more: object) -> PodLine:
    wanted = requests or (DeviceRequest(vendor="NVIDIA", count=1, memory_mib=30_000),)
    return PodLine(
        uid=uid,
        namespace="team",
        name=f"pod-{uid}",
        arrived_s=arrived,
        containers=(ContainerRequest(name="main", role="app", requests=wanted),),
        **more,  # type: ignore[arg-type]
    )


NODE = NodeLine(name="n", cpu_milli=8000, memory_mib=1000, cards=(card("c"),))


def read(*lines: Period | NodeLine | PodLine) -> PodHistory:
    return read_history("\n".join(encode_lines(lines)), "dump", every_vendor().rules)


def test_a_dump_names_its_cluster_and_without_a_name_is_as_it_was() -> None:
    named = PERIOD.model_copy(update={"cluster": "prod-eu"})
    [without, with_name] = (json.loads(line) for line in encode_lines([PERIOD, named]))

    assert "cluster" not in without
    assert with_name == without | {"cluster": "prod-eu"}
    assert read(named, NODE, asking("u")).trace.nodes == read(PERIOD, NODE, asking("u")).trace.nodes


def test_what_was_written_is_read_again() -> None:
    mig = MigProfile(
        name="1g.5gb", memory_mib=4864, core_percent=14, slice_count=1, placements=((0, 1), (1, 1))
    )
    node = NodeLine(
        name="n",
        cards=(card("a", mode="mig", mig_profiles=(mig,), info={"zone": 1}), card("b", index=1)),
        pair_scores={GpuUuid("a"): {GpuUuid("b"): 7}},
    )
    pod = asking(
        "u",
        DeviceRequest(vendor="NVIDIA", count=2, memory_percent=50, core_percent=30),
        arrived=1,
        started_s=2,
        ended_s=9.5,
        selections={"NVIDIA": Selection(use_types=("A100",))},
        host=HostRequest(cpu_milli=500),
    )
    found = read(PERIOD, node, pod)

    [read_node] = found.trace.nodes
    assert read_node.devices == node.cards
    assert read_node.pair_scores == node.pair_scores
    [read_pod] = found.trace.pods
    assert read_pod.request is not None
    assert read_pod.request.containers == pod.containers
    assert read_pod.request.selections == pod.selections
    assert (read_pod.cards, read_pod.card_milli, read_pod.cpu_milli) == (2, 500, 500)
    assert (read_pod.arrives_s, read_pod.starts_s, read_pod.ends_s) == (1, 2, 9.5)
    assert (found.length_s, found.without_host, found.granted_only) == (1000, 1, 0)


@pytest.mark.parametrize("policy", list(ENGINE))
def test_it_is_replayed_on_its_own_cards_by_the_engine(policy: str) -> None:
    found = read(
        PERIOD,
        NODE,
        asking("first", started_s=0, ended_s=400),
        asking("second", arrived=100, started_s=400, ended_s=500),
        asking("never", arrived=200, gone_s=250, granted_only=True),
    )
    stays, window = as_it_was(found.trace.pods, found.length_s)
    course = run_churn(
        stays,
        cluster_under(policy, found.trace, found.trace.nodes),
        window,
        capacity_milli=1000,
        card_memory_mib=40_000,
    )
    assert course.waited == {"share": 2}
    assert course.refused == {"share": 1}
    assert course.in_use == pytest.approx(0.75 * 50)
    assert course.longest_wait_s == pytest.approx(300)


def test_slices_that_a_vendor_keeps_details_of_are_given_back() -> None:
    mig = MigProfile(
        name="3g.20gb", memory_mib=20_000, core_percent=42, slice_count=3, placements=((0, 4),)
    )
    node = NodeLine(name="n", cards=(card("a", mode="mig", mig_profiles=(mig,)),))
    half = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=15_000)
    found = read(
        PERIOD,
        node,
        asking("one", half, started_s=0, ended_s=300),
        asking("two", half, arrived=10, started_s=300, ended_s=900),
    )
    stays, window = as_it_was(found.trace.pods, found.length_s)
    course = run_churn(
        stays, cluster_under("binpack", found.trace, found.trace.nodes), window, capacity_milli=1000
    )
    # The card's only place for the profile is taken until the first has ended.
    assert course.longest_wait_s == pytest.approx(290)
    assert course.refused == {}


def test_published_policies_count_one_number_per_card_and_refuse() -> None:
    found = read(PERIOD, NODE, asking("u"))
    with pytest.raises(InvalidRequest, match="bestfit and fgd count one number per card"):
        cluster_under("fgd", found.trace, found.trace.nodes)


def change_line(line: Period | NodeLine | PodLine, **more: object) -> str:
    [text] = encode_lines([line])
    return json.dumps(json.loads(text) | more)


FIRST, NODES, POD = (change_line(line) for line in (PERIOD, NODE, asking("u")))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((), "dump: expected a first line of kind history"),
        ((NODES,), "dump line 1: expected one first line of kind history"),
        ((FIRST, FIRST), "dump line 2: expected one first line of kind history"),
        ((FIRST, POD), "dump has no node with a card"),
        ((FIRST, NODES), "dump has no pod"),
        ((change_line(PERIOD, until="2025-01-01T00:00:00Z"), NODES, POD), "since before until"),
        ((change_line(PERIOD, version=2),), "dump line 1: history.version: Input should be 1"),
        ((FIRST, "{"), "dump line 2: not JSON"),
        ((FIRST, "[]"), "dump line 2: the line: "),
        ((FIRST, '{"kind": "x"}'), "dump line 2: the line: Input tag 'x'"),
        ((FIRST, NODES, NODES), "dump line 3: node n appears twice: expected once"),
        ((FIRST, NODES, change_line(NODE, name="m")), "dump line 3: card c appears twice"),
        ((FIRST, NODES, POD, POD), "dump line 4: pod u appears twice"),
        ((FIRST, NODES, change_line(asking("u"), arrived_s=-1)), "dump line 3: pod.arrived_s: "),
        ((FIRST, NODES, change_line(asking("u"), containers=[])), "dump line 3: pod.containers: "),
        (
            (FIRST, NODES, change_line(asking("u"), ended_s=5, started_s=9)),
            "(or gone_s) in this order",
        ),
        (
            (FIRST, NODES, change_line(asking("u", DeviceRequest(vendor="NVIDIA", count=0)))),
            "expected 1 to 1024 cards",
        ),
        (
            (FIRST, change_line(NodeLine(name="n", cards=(card("c", memory_mib=-1),)))),
            "card c: slots, memory or cores below 0",
        ),
    ],
)
def test_a_mistake_is_one_sentence(lines: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_history("\n".join(lines), "dump")
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_nodes_of_lines_are_those_with_cards() -> None:
    lines = [PERIOD, NODE, NodeLine(name="bare", cards=())]
    assert [node.name for node in nodes_with_cards(lines, "ledger")] == ["n"]
    with pytest.raises(InvalidRequest, match="ledger has no node with a card"):
        nodes_with_cards(lines[::2], "ledger")
