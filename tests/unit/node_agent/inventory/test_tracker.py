"""Which cards a node offers, and how they are, while they come, go and fail."""

from __future__ import annotations

import pytest
from hami_node_agent.devices.health import GOOD_PROBES, Failure
from hami_node_agent.inventory.tracker import CardTracker
from hamicommon.domain.ids import GpuUuid

from tests.unit.node_agent.inventory.driver import A, B, Driver, facts, tracker_of

LOST = Failure(reason="GPU is lost", certain=True)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
async def cards(driver: Driver) -> CardTracker:
    return await tracker_of(driver)


def reasons(cards: CardTracker) -> dict[str, str]:
    return {device.uuid: device.health_reason for device in cards.devices()}


async def probe(cards: CardTracker, rounds: int = 1) -> None:
    for _ in range(rounds):
        await cards.probe()


async def test_a_lost_card_is_sick_at_once_and_alone(driver: Driver, cards: CardTracker) -> None:
    driver.broken = {A: LOST}

    await probe(cards)

    assert reasons(cards) == {A: "GPU is lost", B: ""}


async def test_a_driver_that_is_away_once_takes_no_card_off(
    driver: Driver, cards: CardTracker
) -> None:
    seen = cards.changed.version
    driver.away = True
    await probe(cards)
    driver.away = False
    await probe(cards)
    assert cards.changed.version == seen

    driver.away = True
    await probe(cards, 2)
    assert reasons(cards) == dict.fromkeys((A, B), "NVML: reload: Driver Not Loaded")

    driver.away = False
    await probe(cards, GOOD_PROBES)
    assert reasons(cards) == {A: "", B: ""}


async def test_a_card_that_is_plugged_in_is_offered(driver: Driver, cards: CardTracker) -> None:
    seen = cards.changed.version
    new = GpuUuid("GPU-new")
    driver.listed, driver.changed = (facts(new, 0), facts(A, 1), facts(B, 2)), True

    await probe(cards)

    assert [(device.uuid, device.index) for device in cards.devices()] == [
        (new, 0),
        (A, 1),
        (B, 2),
    ]
    assert cards.changed.version == seen + 1


async def test_a_card_that_is_pulled_out_stays_as_sick(driver: Driver, cards: CardTracker) -> None:
    """Grants live on; its health shows that nothing new comes on it."""
    driver.listed, driver.changed = (facts(B, 0),), True
    driver.broken = {A: Failure(reason="Not Found", certain=True)}

    await probe(cards)

    assert reasons(cards) == {A: "Not Found", B: ""}


async def test_xids_are_counted_and_only_the_cards_own_make_it_sick(cards: CardTracker) -> None:
    cards.on_xid(A, 31)
    assert reasons(cards) == {A: "", B: ""}

    cards.on_xid(A, 79)
    cards.on_xid(A, 79)
    assert reasons(cards) == {A: "XID 79", B: ""}
    assert cards.xids_seen == {(A, 31, False): 1, (A, 79, True): 2}

    await probe(cards)
    assert reasons(cards) == {A: "", B: ""}


async def test_an_xid_of_no_known_card_may_be_any_cards(cards: CardTracker) -> None:
    cards.on_xid(None, 48)

    assert reasons(cards) == {A: "XID 48", B: "XID 48"}


async def test_who_names_cards_hears_of_those_that_are_plugged_in(driver: Driver) -> None:
    heard: list[set[str]] = []
    cards = await tracker_of(
        driver, on_found=lambda found: heard.append({card.uuid for card in found})
    )
    driver.listed, driver.changed = (*driver.listed, facts(GpuUuid("c"), 2)), True

    await probe(cards)

    assert heard == [{A, B}, {A, B, "c"}]
