"""How much more fits, and the free amounts that no pod can use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_metrics.domain.capacity import MIB, RequestClass, fitting_pods, unallocatable_bytes

from tests.unit.devices import a_cluster_card

GIB = 1024
IDLE = a_cluster_card()
LOST = {
    "sick": {"healthy": False},
    "cordoned": {"cordoned": True},
    "no-slot": {"used_slots": 10},
    "no-cores": {"used_slots": 1, "used_core_percent": 100},
}


def test_an_idle_card_takes_as_many_slices_as_its_memory_and_slots_let() -> None:
    assert fitting_pods((IDLE,), frozenset()) == {
        RequestClass.GIB_8: 10,
        RequestClass.GIB_40: 2,
        RequestClass.CARD: 1,
        RequestClass.NODE: 0,
    }
    few_slots = replace(IDLE, used_slots=7, used_memory_mib=GIB)
    assert fitting_pods((few_slots,), frozenset())[RequestClass.GIB_8] == 3
    assert unallocatable_bytes((IDLE, few_slots), frozenset()) == 0


def test_eight_idle_cards_of_one_node_are_a_node() -> None:
    cards = tuple(replace(IDLE, uuid=f"GPU-{i}", index=i) for i in range(8))

    assert fitting_pods(cards, frozenset())[RequestClass.NODE] == 1
    assert fitting_pods((*cards[:7], replace(IDLE, node="n1")), frozenset())[RequestClass.NODE] == 0


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_free_memory_that_nobody_can_have_is_counted_and_fits_nothing(
    lost: dict[str, int | bool],
) -> None:
    card = replace(IDLE, used_memory_mib=30 * GIB, **lost)  # type: ignore[arg-type]

    assert set(fitting_pods((card,), frozenset()).values()) == {0}
    assert unallocatable_bytes((card,), frozenset()) == 50 * GIB * MIB


def test_cards_behind_a_silent_agent_take_nothing() -> None:
    assert set(fitting_pods((IDLE,), {"n0"}).values()) == {0}
    assert unallocatable_bytes((IDLE,), {"n0"}) == 80 * GIB * MIB


def test_a_card_that_shrank_below_its_grants_counts_nothing() -> None:
    shrunken = replace(IDLE, memory_mib=GIB, used_memory_mib=2 * GIB, used_slots=1)

    assert set(fitting_pods((shrunken,), frozenset()).values()) == {0}
    assert unallocatable_bytes((replace(shrunken, healthy=False),), frozenset()) == 0
