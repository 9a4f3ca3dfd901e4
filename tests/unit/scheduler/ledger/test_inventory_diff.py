"""Changes of the ledger by a node's report."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hami_scheduler.ledger.inventory_diff import (
    MAX_CARDS,
    NO_LONGER_REPORTED,
    KnownCard,
    compare,
    key_cards,
    screen,
)
from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName, card_id, card_key
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.devices import a_device

CARD = a_device(type="A100", memory_mib=1000)
KNOWN = {CARD.uuid: KnownCard(device=CARD, present=True)}


def test_a_report_of_what_is_known_changes_nothing() -> None:
    changes = compare(KNOWN, [CARD])

    assert changes.empty
    assert changes.health == ()


def test_a_new_card_is_inserted_and_healthy() -> None:
    changes = compare({}, [CARD])

    assert changes.inserts == (CARD,)
    assert [change.healthy for change in changes.health] == [True]


def test_a_change_of_capacity_is_no_change_of_health() -> None:
    smaller = replace(CARD, memory_mib=500)

    changes = compare(KNOWN, [smaller])

    assert changes.updates == (KnownCard(device=smaller, present=True),)
    assert changes.health == ()


def test_a_sick_card_is_reported_with_its_reason() -> None:
    [change] = compare(KNOWN, [replace(CARD, healthy=False, health_reason="XID 79")]).health

    assert (change.healthy, change.reason) == (False, "XID 79")


def test_a_card_that_vanished_stays_as_sick() -> None:
    changes = compare(KNOWN, [])

    [update] = changes.updates
    assert (update.present, update.device.healthy) == (False, False)
    assert [change.reason for change in changes.health] == [NO_LONGER_REPORTED]
    assert compare({CARD.uuid: update}, []).empty


def test_a_card_that_comes_back_is_healthy_again() -> None:
    gone = KnownCard(device=replace(CARD, healthy=False), present=False)

    changes = compare({CARD.uuid: gone}, [CARD])

    assert changes.updates == (KnownCard(device=CARD, present=True),)
    assert [change.healthy for change in changes.health] == [True]


@given(st.lists(st.integers(0, 20), max_size=40), st.sets(st.integers(0, 20)))
def test_of_each_card_one_report_counts_and_none_that_another_node_has(
    reported: list[int], foreign: set[int]
) -> None:
    cards = [replace(CARD, uuid=GpuUuid(f"GPU-{n}"), index=i) for i, n in enumerate(reported)]

    screened = screen(cards, {GpuUuid(f"GPU-{n}"): NodeName("other") for n in foreign})

    accepted = [device.uuid for device in screened.accepted]
    assert sorted(accepted) == sorted({f"GPU-{n}" for n in set(reported) - foreign})
    assert {*accepted, *screened.refused} == {device.uuid for device in cards}


def test_a_node_has_a_bounded_number_of_cards() -> None:
    cards = [replace(CARD, uuid=GpuUuid(f"GPU-{n}"), index=n) for n in range(MAX_CARDS + 2)]

    screened = screen(cards, {})

    assert len(screened.accepted) == MAX_CARDS
    assert list(screened.refused.values()) == [f"a node has at most {MAX_CARDS} cards"] * 2


@pytest.mark.parametrize(
    ("vendor", "known", "name"),
    [
        pytest.param("DCU", [], "GPU-0@n1", id="ids are unique on their node"),
        pytest.param("NVIDIA", [], "GPU-0", id="uuids are unique in the cluster"),
        pytest.param("DCU", ["GPU-0"], "GPU-0", id="written before there were keys"),
        pytest.param("DCU", ["GPU-0", "GPU-0@n1"], "GPU-0@n1", id="written with and without"),
    ],
)
def test_a_card_of_an_annotation_has_a_name_that_no_other_node_uses(
    vendor: str, known: list[GpuUuid], name: str
) -> None:
    device = replace(CARD, vendor=vendor)
    inventory = NodeInventory(
        node=NodeName("n1"), devices=(device,), observed_at=datetime(2026, 1, 1, tzinfo=UTC)
    )

    assert key_cards(inventory, known).devices == (replace(device, uuid=GpuUuid(name)),)


@given(st.text(min_size=1), st.from_regex(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", fullmatch=True))
def test_the_id_of_a_card_is_read_from_its_name(written: str, node: str) -> None:
    assert card_id(card_key(NodeName(node), written)) == written
