"""The view holds the ledger's latest state."""

from dataclasses import replace

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cluster.view import CardState, ClusterView
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, view_of

N = NodeName("n")
G = GpuUuid("g")


def used_amounts(view: ClusterView, node: str = "n") -> list[tuple[int, int, int, int]]:
    return [
        (u.used_slots, u.used_memory_mib, u.used_core_percent, version)
        for u, version in view.cards(NodeName(node))
    ]


def test_cards_come_back_as_they_were_set() -> None:
    states = (CardState(card("g", used=(1, 2, 3), cordoned=True, healthy=False), 7),)
    view = ClusterView()
    view.set_node(N, states)

    assert view.cards(N) == states
    assert list(view.nodes) == ["n"]


def test_only_a_higher_version_is_applied() -> None:
    view = view_of({"n": [card("g")]})

    assert view.apply(G, slots=1, memory_mib=10, core_percent=5, version=3)
    assert not view.apply(G, slots=9, memory_mib=9, core_percent=9, version=3)
    assert not view.apply(GpuUuid("other"), slots=1, memory_mib=1, core_percent=1, version=9)
    assert used_amounts(view) == [(1, 10, 5, 3)]


def test_setting_a_node_keeps_counters_of_a_higher_version() -> None:
    view = view_of({"n": [card("g")]})
    view.apply(G, slots=1, memory_mib=10, core_percent=5, version=3)
    view.set_node(N, [CardState(card("g", memory_mib=99), 2), CardState(card("h"), 1)])

    assert used_amounts(view) == [(1, 10, 5, 3), (0, 0, 0, 1)]
    assert view.cards(N)[0].usage.device.memory_mib == 99


def test_a_node_that_lost_a_card_forgets_it() -> None:
    view = view_of({"n": [card("g"), card("h")]})
    view.set_node(N, [CardState(card("h"), 1)])

    assert not view.apply(G, slots=1, memory_mib=1, core_percent=1, version=9)
    assert [state.usage.device.uuid for state in view.cards(N)] == ["h"]


def test_a_card_that_moved_to_another_node_stays_known_there() -> None:
    view = view_of({"n": [card("g")], "m": []})
    view.set_node(NodeName("m"), [CardState(card("g"), 1)])
    view.remove_node(N)

    assert view.apply(G, slots=1, memory_mib=1, core_percent=1, version=2)
    assert used_amounts(view, "m") == [(1, 1, 1, 2)]


def test_every_change_is_counted_and_nothing_else() -> None:
    view = view_of({"n": [card("g")]})
    before = view.version
    view.apply(G, slots=1, memory_mib=1, core_percent=1, version=1)
    view.remove_node(NodeName("nowhere"))
    assert view.version == before

    view.apply(G, slots=1, memory_mib=1, core_percent=1, version=2)
    view.remove_node(N)
    assert view.version == before + 2
    assert view.cards(N) == ()


def test_scores_are_hamis_and_0_without_capacity() -> None:
    view = view_of(
        {"n": [card("g", used=(2, 2048, 25), memory_mib=8192)], "odd": [card("h", slots=0)]}
    )
    rows, _ = view.rows_of([N, NodeName("odd")])

    assert view.scores(rows).tolist() == pytest.approx([10 * (0.2 + 0.25 + 0.25), 0])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 5)),
        st.tuples(st.just("remove"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("apply"), st.integers(0, 4), st.integers(0, 5)),
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(steps)
def test_any_sequence_of_changes_ends_as_a_view_built_at_once(
    changes: list[tuple[str, int, int]],
) -> None:
    view, model = ClusterView(), dict[str, list[tuple[DeviceUsage, int]]]()
    for version, (kind, node, number) in enumerate(changes, start=1):
        name = f"n{node}"
        if kind == "set":
            model[name] = [(card(f"g{node}-{i}", index=i), version) for i in range(number)]
            view.set_node(NodeName(name), [CardState(*state) for state in model[name]])
        elif kind == "remove":
            model.pop(name, None)
            view.remove_node(NodeName(name))
        else:
            for place, (usage, _) in enumerate(model.get(name, [])):
                if usage.device.index == number:
                    changed = replace(usage, used_slots=version, used_memory_mib=1)
                    model[name][place] = (changed, version)
            view.apply(
                GpuUuid(f"g{node}-{number}"),
                slots=version,
                memory_mib=1,
                core_percent=0,
                version=version,
            )

    fresh = ClusterView()
    for name, states in model.items():
        fresh.set_node(NodeName(name), [CardState(*state) for state in states])
        assert view.cards(NodeName(name)) == fresh.cards(NodeName(name))
    assert set(view.nodes) == set(fresh.nodes)
    names = [NodeName(name) for name in model]
    ours, ours_unknown = view.rows_of(names)
    theirs, theirs_unknown = fresh.rows_of(names)
    assert ours_unknown == theirs_unknown
    assert dict(zip(view.names(ours), view.scores(ours).tolist(), strict=True)) == dict(
        zip(fresh.names(theirs), fresh.scores(theirs).tolist(), strict=True)
    )
    assert view.table(ours).free_slots.sum() == fresh.table(theirs).free_slots.sum()


def test_a_frozen_moment_is_not_touched_by_what_comes_after() -> None:
    view = view_of({"a": [card("g0", used=(1, 100, 10)), card("g1")]})
    frozen = view.frozen()

    view.apply(GpuUuid("g0"), slots=5, memory_mib=500, core_percent=50, version=2)
    counted = view.frozen()
    view.set_node(NodeName("b"), [CardState(card("g2"), 1)])

    assert frozen.names == ("a",)
    assert frozen.used[0].tolist() == [[1, 100, 10], [0, 0, 0]]
    assert counted.used[0, 0].tolist() == [5, 500, 50]
    assert counted.inventory_version == frozen.inventory_version != view.inventory_version


def test_a_node_that_is_read_again_as_it_was_is_no_other_inventory() -> None:
    view, node = ClusterView(), NodeName("a")
    view.set_node(node, [CardState(card("g0"), 1)])
    inventory, version = view.inventory_version, view.version

    view.set_node(node, [CardState(card("g0", used=(1, 100, 10)), 2)])

    assert view.inventory_version == inventory
    assert view.version > version
    assert view.cards(node)[0].usage.used_memory_mib == 100
    assert view.frozen().used[0].tolist() == [[1, 100, 10]]
    others = (
        [CardState(replace(card("g0"), cordoned=True), 3)],
        [CardState(replace(card("g0"), holdings=({"a": 1},)), 4)],
        [CardState(card("g0", memory_mib=7), 5)],
        [CardState(card("g0", memory_mib=7), 5), CardState(card("g1"), 1)],
        [CardState(card("g1"), 1)],
    )
    for cards in others:
        inventory = view.inventory_version
        view.set_node(node, cards)
        assert view.inventory_version > inventory
    inventory = view.inventory_version
    view.set_node(node, others[-1], pair_scores={GpuUuid("g1"): {GpuUuid("g2"): 3}})
    assert view.inventory_version > inventory


def test_a_frozen_moment_may_have_the_counters_of_some_nodes_only() -> None:
    view = view_of({"a": [card("g0")], "b": [card("g1", used=(2, 20, 2))]})

    frozen = view.frozen([NodeName("b"), NodeName("unknown")])

    assert frozen.names == ("a", "b")
    assert (frozen.rows, frozen.used.tolist()) == ((1,), [[[2, 20, 2]]])


def test_the_rows_of_the_same_nodes_are_remembered_until_the_inventory_changes() -> None:
    view = ClusterView()
    view.set_node(NodeName("a"), [CardState(card("GPU-a"), 1)])
    asked = (NodeName("a"), NodeName("b"))

    rows, unknown = view.rows_of(asked)
    assert (rows.tolist(), unknown) == ([0], ("b",))
    assert view.rows_of(asked)[0] is rows

    view.set_node(NodeName("b"), [CardState(card("GPU-b"), 1)])
    assert (view.rows_of(asked)[0].tolist(), view.rows_of(asked)[1]) == ([0, 1], ())
    view.remove_node(NodeName("a"))
    assert (view.rows_of(asked)[0].tolist(), view.rows_of(asked)[1]) == ([0], ("a",))


def test_a_copy_stays_as_it_was_whatever_becomes_of_the_view() -> None:
    other = card("o", type="other")
    view = view_of({"n": [card("g"), card("h")], "m": [other]})
    view.set_free_cpu(N, 500)
    copy = view.copy()
    before = {node: copy.cards(node) for node in copy.nodes}

    view.apply(G, slots=1, memory_mib=10, core_percent=5, version=3)
    view.shift(G, slots=1, memory_mib=1, core_percent=0, added=[{"a": 1}])
    view.set_node(N, [CardState(card("h", type="new"), 9)])
    view.remove_node(NodeName("m"))
    view.set_node(NodeName("l"), [CardState(card("l"), 1)])

    assert {node: copy.cards(node) for node in copy.nodes} == before
    rows, _ = copy.rows_of(None)
    assert sorted(copy.names(rows)) == ["m", "n"]
    assert {model.type for model in copy.models if model is not None} == {other.device.type} | {
        usage.device.type for usage, _ in before[N]
    }
    assert copy.free_cpu(copy.rows_of((N,))[0]).tolist() == [500]
    copy.shift(G, slots=1, memory_mib=7, core_percent=0)
    assert used_amounts(copy)[0] == (1, 7, 0, 1)
    assert used_amounts(view) == [(0, 0, 0, 9)]
