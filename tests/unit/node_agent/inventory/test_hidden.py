from collections.abc import Mapping

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.offer import CardFacts
from hami_node_agent.devices.processes import CardProcesses
from hami_node_agent.devices.topology import CardLinks
from hami_node_agent.inventory.probes import FilteredProbe
from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample

from tests.unit.node_agent.builders import CARD_A, CARD_B

CARD_C = GpuUuid("GPU-cccccccc-0000-0000-0000-000000000003")
CARDS = (CARD_A, CARD_B, CARD_C)
LINKS = tuple(CardLinks(uuid=uuid, meetings={}, nvlinks={}) for uuid in CARDS)
LOST = Failure(reason="GPU is lost", certain=True)


class Probe:
    """Three cards, all of which fail, and one event."""

    def __init__(self) -> None:
        self.event: tuple[GpuUuid | None, int] | None = None

    async def cards(self) -> tuple[CardFacts, ...]:
        return tuple(
            CardFacts(uuid=uuid, index=index, name="A100", memory_mib=1)
            for index, uuid in enumerate(CARDS)
        )

    async def links(self) -> tuple[CardLinks, ...]:
        return LINKS

    async def reload(self) -> bool:
        return True

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        return dict.fromkeys(CARDS, LOST)

    async def watch_events(self) -> None:
        return None

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        return self.event

    async def samples(self) -> tuple[DeviceSample, ...]:
        return tuple(
            DeviceSample(uuid=uuid, index=index, type="A100") for index, uuid in enumerate(CARDS)
        )

    async def processes(self) -> Mapping[str, CardProcesses]:
        return {uuid: CardProcesses() for uuid in CARDS}


async def test_a_card_hidden_by_uuid_or_index_is_seen_by_nobody() -> None:
    probe = FilteredProbe(Probe(), {CARD_A, "2"})

    assert [card.uuid for card in await probe.cards()] == [CARD_B]
    assert await probe.failing() == {CARD_B: LOST}
    assert [sample.uuid for sample in await probe.samples()] == [CARD_B]
    assert set(await probe.processes()) == {CARD_B}
    assert [card.uuid for card in await probe.links()] == [CARD_B]


async def test_what_happens_to_a_hidden_card_makes_no_other_sick() -> None:
    inner = Probe()
    probe = FilteredProbe(inner, {CARD_A})
    await probe.cards()

    inner.event = (CARD_A, 79)
    assert await probe.next_xid() is None
    inner.event = (CARD_B, 79)
    assert await probe.next_xid() == (CARD_B, 79)
    inner.event = (None, 79)
    assert await probe.next_xid() == (None, 79)
