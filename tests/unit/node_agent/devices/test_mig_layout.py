import pytest
from hami_node_agent.devices.mig_partition import (
    MigInstance,
    MigLayout,
    MigStrategy,
    mig_resources,
    profile_name,
)
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

from tests.unit.node_agent.builders import CARD_A, CARD_B

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
        (a_layout(an_instance(1)), f"card {CARD_B} is in MIG mode and has no instance"),
        (a_layout(*ALIKE, an_instance(4, CARD_B, "3g.40gb")), "instances of 1g.10gb, 3g.40gb"),
    ],
)
def test_single_wants_all_alike(layout: MigLayout, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        mig_resources(layout, "single", COUNT)
