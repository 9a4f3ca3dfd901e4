"""The ledger's statistics are published when they change, and all of them now and then."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hami_scheduler.bus import ledger_stats
from hami_scheduler.bus.ledger_stats import LedgerStats, LedgerStatsPublisher
from hamicommon.errors import Unavailable
from hamicommon.events import ClusterNumbers, QuotaNumbers
from hamicommon.process.bulkhead import Bulkhead
from pydantic import BaseModel

NOW = datetime(2026, 11, 20, tzinfo=UTC)
CLUSTER = "hami.ledger.v1.cluster"
TEAM = "hami.ledger.v1.quota.team"


class FakeBus:
    """A bus that notes the messages, or is unavailable."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.ids: set[str] = set()
        self.away = False

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        if self.away:
            raise Unavailable("NATS is not connected")
        self.subjects.append(subject)
        self.ids.add(message_id)

    def take_subjects(self) -> list[str]:
        found, self.subjects = self.subjects, []
        return found


class NoReader:
    async def read(self) -> LedgerStats:
        raise AssertionError("not asked here")


def make_stats(used: int, at: datetime = NOW) -> LedgerStats:
    quota = QuotaNumbers(resource="nvidia.com/gpumem", limit=100, used=used)
    cluster = ClusterNumbers(taken_at=at, agent_nodes=1, foreign_vendors=())
    return LedgerStats(cluster, {"team": (quota,)})


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


@pytest.fixture
def publisher(bus: FakeBus) -> LedgerStatsPublisher:
    return LedgerStatsPublisher(NoReader(), bus)


async def test_a_namespace_is_published_when_its_numbers_change(
    publisher: LedgerStatsPublisher, bus: FakeBus
) -> None:
    await publisher.publish(make_stats(1))
    assert bus.take_subjects() == [TEAM, CLUSTER]

    await publisher.publish(make_stats(1))
    assert bus.take_subjects() == [CLUSTER]

    await publisher.publish(make_stats(2))
    assert bus.take_subjects() == [TEAM, CLUSTER]


async def test_everything_is_published_again_now_and_then(
    publisher: LedgerStatsPublisher, bus: FakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_stats, "PUBLISH_ALL_INTERVAL_S", 0.0)
    for _ in range(2):
        await publisher.publish(make_stats(1))
        assert bus.take_subjects() == [TEAM, CLUSTER]


async def test_what_the_bus_did_not_take_is_published_at_the_next_reading(
    publisher: LedgerStatsPublisher, bus: FakeBus
) -> None:
    bus.away = True
    with pytest.raises(Unavailable):
        await publisher.publish(make_stats(1))

    bus.away = False
    await publisher.publish(make_stats(1))
    assert bus.take_subjects() == [TEAM, CLUSTER]


async def test_every_message_has_an_id_of_its_own(
    publisher: LedgerStatsPublisher, bus: FakeBus
) -> None:
    await publisher.publish(make_stats(1))
    await publisher.publish(make_stats(2, NOW.replace(second=2)))

    assert len(bus.ids) == 4


async def test_namespaces_around_a_poisonous_one_are_published(bus: FakeBus) -> None:
    bulkhead = Bulkhead()
    publisher = LedgerStatsPublisher(NoReader(), bus, bulkhead=bulkhead)
    quotas = make_stats(1).quotas["team"]
    odd = cast(Any, object())

    numbers = make_stats(1)._replace(quotas={"a": quotas, "poison": odd, "z": quotas})
    await publisher.publish(numbers)

    assert bus.take_subjects() == ["hami.ledger.v1.quota.a", "hami.ledger.v1.quota.z", CLUSTER]
    assert bulkhead.failures == {"ledger-stats": 1}
