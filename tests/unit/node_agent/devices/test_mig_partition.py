from dataclasses import replace

import pytest
from hami_node_agent.devices.mig_partition import (
    Instance,
    MigInstance,
    MigLayout,
    MigStrategy,
    OwnInstance,
    ProfileFacts,
    in_the_way,
    mig_resources,
    offer_of,
    plan,
    profile_name,
    profile_of,
    without_places,
)
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.mig import MigSlice
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_agent.builders import CARD_A, CARD_B


def facts(number: int, slices: int, size: int, *starts: int, name: str) -> ProfileFacts:
    return ProfileFacts(
        number=number,
        profile_id=19 - number,
        name=name,
        slices=slices,
        memory_mib=10240 * size - 512,
        multiprocessors=14 * slices,
        instances=len(starts),
        placements=tuple((start, size) for start in starts),
    )


A100 = (
    facts(0, 1, 1, 0, 1, 2, 3, 4, 5, 6, name="1g.10gb"),
    facts(1, 2, 2, 0, 2, 4, name="2g.20gb"),
    facts(2, 3, 4, 0, 4, name="3g.40gb"),
    facts(4, 7, 8, 0, name="7g.80gb"),
    facts(9, 1, 2, 0, 2, 4, 6, name="1g.20gb"),
)


def part(start: int, size: int = 1, profile: str = "1g.10gb") -> MigSlice:
    return MigSlice(profile=profile, start=start, size=size)


def own(start: int, uuid: str = "", *, card: GpuUuid = CARD_A, size: int = 1) -> OwnInstance:
    return OwnInstance(card=card, part=part(start, size), uuid=uuid)


def there(
    start: int, *uuids: str, card: GpuUuid = CARD_A, size: int = 1, number: int = 7
) -> Instance:
    devices = tuple(enumerate(uuids))
    return Instance(card=card, gpu_instance=number, start=start, size=size, devices=devices)


def test_the_offer_has_the_allowed_profiles_under_their_names_in_the_table() -> None:
    offer = offer_of(("1g.10gb", "7g.79gb", "9g.1gb"), A100)
    assert offer is not None
    assert [(p.name, p.memory_mib, p.core_percent, p.slice_count) for p in offer.profiles] == [
        ("1g.10gb", 9728, 15, 1),
        ("7g.79gb", 81408, 100, 7),
    ]
    assert offer.slots == 7


def test_a_card_without_an_allowed_profile_has_no_offer() -> None:
    assert offer_of((), A100) is None
    assert offer_of(("1g.10gb",), ()) is None


@pytest.mark.parametrize(
    ("name", "number"), [("1g.10gb", 0), ("1g.20gb", 9), ("7g.79gb", 4), ("5g.60gb", None)]
)
def test_a_profile_is_found_by_its_name_else_by_its_slices(name: str, number: int | None) -> None:
    found = profile_of(name, A100)
    assert (None if found is None else found.number) == number


def test_places_of_other_instances_are_not_offered() -> None:
    offer = offer_of(("1g.10gb", "3g.40gb", "7g.79gb"), A100)
    assert offer is not None
    left = without_places(offer, [there(4, "MIG-x", size=4)])
    assert [(p.name, p.placements) for p in left.profiles] == [
        ("1g.10gb", ((0, 1), (1, 1), (2, 1), (3, 1))),
        ("3g.40gb", ((0, 4),)),
    ]


def test_only_what_overlaps_on_the_same_card_is_in_the_way() -> None:
    beside, other = there(3, "MIG-a"), there(0, "MIG-b", card=CARD_B, size=8)
    over = there(5, "MIG-c", size=2)
    assert in_the_way(part(4, 4), CARD_A, [beside, other, over]) == (over,)


def test_an_instance_that_a_container_holds_is_kept_and_a_released_one_destroyed() -> None:
    held, released = own(0, "MIG-a"), own(1, "MIG-b")
    found = plan([held, released], [there(0, "MIG-a"), there(1, "MIG-b")], {"MIG-a"})
    assert (found.kept, found.destroy) == ((held,), ((released, there(1, "MIG-b")),))


def test_one_that_was_made_and_that_no_answer_names_is_destroyed() -> None:
    found = plan([own(0)], [there(0, "MIG-a")], set())
    assert found.destroy == ((own(0), there(0, "MIG-a")),)


def test_a_half_made_one_is_destroyed_too() -> None:
    assert plan([own(0)], [there(0)], set()).destroy == ((own(0), there(0)),)


def test_one_that_was_never_made_is_forgotten() -> None:
    assert plan([own(0)], [], set()).forget == (own(0),)


def test_another_instance_in_the_place_of_ours_is_not_ours() -> None:
    found = plan([own(0, "MIG-a")], [there(0, "MIG-x")], {"MIG-a"})
    assert (found.lost, found.foreign) == ((own(0, "MIG-a"),), (there(0, "MIG-x"),))


def test_an_instance_of_another_size_at_our_start_is_not_ours() -> None:
    found = plan([own(0)], [there(0, "MIG-x", size=4)], set())
    assert (found.foreign, found.forget) == ((there(0, "MIG-x", size=4),), (own(0),))


places = st.tuples(st.sampled_from([CARD_A, CARD_B]), st.integers(0, 6))
uuids = st.sampled_from(["MIG-a", "MIG-b", "MIG-c", "MIG-d"])
owned = st.dictionaries(places, st.one_of(st.just(""), uuids), max_size=8).map(
    lambda d: [own(start, uuid, card=card) for (card, start), uuid in d.items()]
)
present = st.dictionaries(places, st.lists(uuids, max_size=1), max_size=8).map(
    lambda d: [
        there(start, *named, card=card, number=number)
        for number, ((card, start), named) in enumerate(d.items())
    ]
)
holding = st.frozensets(uuids)


@given(owned, present, holding)
def test_nothing_held_and_nothing_foreign_is_ever_destroyed(
    ours: list[OwnInstance], found: list[Instance], held: frozenset[str]
) -> None:
    made = plan(ours, found, held)
    for one, instance in made.destroy:
        assert one in ours
        assert one.is_at(instance)
        assert not one.uuid or one.uuid not in held


@given(owned, present, holding)
def test_every_instance_and_every_entry_has_exactly_one_fate(
    ours: list[OwnInstance], found: list[Instance], held: frozenset[str]
) -> None:
    made = plan(ours, found, held)
    doomed = [instance for _, instance in made.destroy]
    kept = [each for each in found if any(one.is_at(each) for one in made.kept)]
    everything = [*doomed, *kept, *made.foreign]
    assert sorted(map(repr, everything)) == sorted(map(repr, found))
    entries = [*made.kept, *(one for one, _ in made.destroy), *made.forget, *made.lost]
    assert sorted(map(repr, entries)) == sorted(map(repr, ours))


@given(owned, present, holding)
def test_once_carried_out_there_is_nothing_more_to_do(
    ours: list[OwnInstance], found: list[Instance], held: frozenset[str]
) -> None:
    made = plan(ours, found, held)
    doomed = [instance for _, instance in made.destroy]
    after = plan([*made.kept, *made.lost], [each for each in found if each not in doomed], held)
    assert after == replace(made, destroy=(), forget=())


# --- the instances that a node has under each strategy: their resources and their names


COUNT = "nvidia.com/gpu"


def an_instance(number: int, card: GpuUuid = CARD_A, profile: str = "1g.10gb") -> MigInstance:
    return MigInstance(
        uuid=f"MIG-{number}", card=card, profile=profile, gpu_instance=number, compute_instance=0
    )


def a_layout(*instances: MigInstance, mig_cards: set[GpuUuid] | None = None) -> MigLayout:
    return MigLayout(
        cards=frozenset({CARD_A, CARD_B}),
        mig_cards=frozenset({CARD_A, CARD_B} if mig_cards is None else mig_cards),
        instances=instances,
    )


ALIKE = (an_instance(1), an_instance(2), an_instance(3, CARD_B))


@pytest.mark.parametrize(
    ("gpu_slices", "compute_slices", "memory_mib", "card_gib", "name"),
    [
        (1, 1, 4864, 40, "1g.5gb"),
        (2, 2, 9984, 40, "2g.10gb"),
        (3, 3, 20096, 40, "3g.20gb"),
        (7, 7, 40192, 40, "7g.40gb"),
        (1, 1, 9728, 80, "1g.10gb"),
        (4, 4, 40448, 80, "4g.40gb"),
        (3, 1, 20096, 40, "1c.3g.20gb"),
    ],
)
def test_a_profile_is_called_as_nvidia_calls_it(
    gpu_slices: int, compute_slices: int, memory_mib: int, card_gib: int, name: str
) -> None:
    found = profile_name(
        gpu_slices=gpu_slices,
        compute_slices=compute_slices,
        memory_mib=memory_mib,
        card_memory_bytes=card_gib << 30,
    )

    assert found == name


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_cards_without_mig_are_slices_alone(strategy: MigStrategy) -> None:
    assert mig_resources(a_layout(mig_cards=set()), strategy, COUNT) == {}


def test_with_none_nothing_is_made_of_instances() -> None:
    assert mig_resources(a_layout(*ALIKE), "none", COUNT) == {}


def test_with_single_the_count_resource_counts_instances() -> None:
    assert mig_resources(a_layout(*ALIKE), "single", COUNT) == {COUNT: ALIKE}


def test_with_mixed_each_profile_is_a_resource() -> None:
    big = an_instance(4, CARD_B, "3g.40gb")

    assert mig_resources(a_layout(*ALIKE, big, mig_cards={CARD_B}), "mixed", COUNT) == {
        "nvidia.com/mig-1g.10gb": ALIKE,
        "nvidia.com/mig-3g.40gb": (big,),
    }


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (a_layout(*ALIKE, mig_cards={CARD_A}), "1 of 2 cards are in MIG mode"),
        (a_layout(an_instance(1)), f"card {CARD_B} is in MIG mode without any instance"),
        (a_layout(*ALIKE, an_instance(4, CARD_B, "3g.40gb")), "instances of 1g.10gb, 3g.40gb"),
    ],
)
def test_single_wants_all_alike(layout: MigLayout, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        mig_resources(layout, "single", COUNT)
