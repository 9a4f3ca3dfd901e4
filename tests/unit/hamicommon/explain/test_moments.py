"""A decision's inputs survive encoding and decoding."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.explain.record import MomentEncoder, thaw, unpack
from hamicommon.placement.cluster.view import ClusterView
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, view_of


def restore_view(view: ClusterView, nodes: list[NodeName] | None = None) -> ClusterView:
    moment = MomentEncoder().encode(view.frozen(nodes))
    return thaw(unpack(moment.inventory.content), orjson.loads(moment.counters_json), ClusterView)


amounts = st.integers(0, 100_000)
cards = st.builds(
    lambda used, healthy, cordoned, memory_mib: (used, healthy, cordoned, memory_mib),
    st.tuples(amounts, amounts, amounts),
    st.booleans(),
    st.booleans(),
    amounts,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(cards, max_size=3)))
def test_every_card_comes_back_as_it_was(nodes: dict[str, list[tuple[object, ...]]]) -> None:
    view = view_of(
        {
            name: [
                card(
                    f"{name}-{n}",
                    used=used,
                    healthy=bool(healthy),
                    cordoned=bool(cordoned),
                    memory_mib=int(memory),
                )
                for n, (used, healthy, cordoned, memory) in enumerate(states)
            ]
            for name, states in nodes.items()
        }
    )

    thawed = restore_view(view)

    assert {n: [c.usage for c in thawed.cards(n)] for n in thawed.nodes} == {
        n: [c.usage for c in view.cards(n)] for n in view.nodes
    }


def test_what_only_a_vendor_understands_comes_back_too() -> None:
    usage = card("g")
    device = replace(usage.device, info={"network": "a"})
    held = DeviceUsage(device=device, used_slots=1, holdings=({"profile": "1g.5gb"},))

    [state] = restore_view(view_of({"n": [held]})).cards(NodeName("n"))

    assert state.usage == held
    assert state.usage.device.info == {"network": "a"}


def test_counters_newer_than_the_inventory_are_what_counts() -> None:
    view = view_of({"n": [card("g", used=(1, 10, 1))]})
    view.apply(GpuUuid("g"), slots=2, memory_mib=20, core_percent=2, version=2)

    [state] = restore_view(view).cards(NodeName("n"))

    assert state.usage.used_memory_mib == 20


def test_some_nodes_can_be_kept_alone() -> None:
    view = view_of({"b": [card("g0")], "a": [card("g1", used=(1, 1, 1)), card("g2")]})

    thawed = restore_view(view, [NodeName("a")])

    assert set(thawed.nodes) == {"a"}
    assert [c.usage.used_slots for c in thawed.cards(NodeName("a"))] == [1, 0]


def test_blobs_of_the_same_content_have_the_same_name_in_every_process() -> None:
    one = view_of({"a": [card("g0")], "b": [card("g1")]})
    other = view_of({"b": [card("g1")], "a": [card("g0")]})
    encoder = MomentEncoder()
    before = encoder.encode(one.frozen())

    assert MomentEncoder().encode(other.frozen()) == before

    one.apply(GpuUuid("g0"), slots=1, memory_mib=1, core_percent=1, version=2)
    after = encoder.encode(one.frozen())
    assert after.inventory == before.inventory
    assert after.counters.id != before.counters.id


def test_a_card_that_falls_sick_is_another_inventory() -> None:
    view = view_of({"a": [card("g0")]})
    encoder = MomentEncoder()
    before = encoder.encode(view.frozen())
    sick = view_of({"a": [card("g0", healthy=False)]})
    view.set_node(NodeName("a"), sick.cards(NodeName("a")))

    assert encoder.encode(view.frozen()).inventory.id != before.inventory.id


def test_a_thousand_nodes_make_a_few_bytes_per_card() -> None:
    view = view_of(
        {f"n{n:04}": [card(f"g{n}-{c}", used=(2, 8192, 20)) for c in range(8)] for n in range(1000)}
    )

    counters = MomentEncoder().encode(view.frozen()).counters

    assert len(counters.content) < 8000
