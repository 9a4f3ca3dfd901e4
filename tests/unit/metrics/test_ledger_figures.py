"""The ledger's figures are unknown when their reading is stale."""

import math
from datetime import timedelta
from itertools import count

import pytest
from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.service import LedgerFigures
from hamicommon.errors import Unavailable

from tests.metric_registry import EMPTY
from tests.unit.clock import Clock


class FakeLedger:
    def __init__(self) -> None:
        self.reads = count()
        self.away = False

    async def snapshot(self) -> ClusterSnapshot:
        if self.away:
            raise Unavailable("Postgres: away")
        next(self.reads)
        return EMPTY


async def test_a_stale_reading_of_the_ledger_is_unknown(clock: Clock) -> None:
    ledger = FakeLedger()
    view = LedgerFigures(ledger, clock, stale_s=30)
    assert view.newest() is None
    assert math.isnan(view.age_s)
    assert view.not_ready_reasons() == ["the ledger has not been read yet"]

    await view.refresh()
    assert view.newest() is EMPTY
    assert view.not_ready_reasons() == []

    ledger.away = True
    clock.now += timedelta(seconds=30)
    with pytest.raises(Unavailable):
        await view.refresh()
    assert view.newest() is EMPTY
    clock.now += timedelta(seconds=1)
    assert view.newest() is None
    assert view.not_ready_reasons() == ["the last reading of the ledger is 31 s old"]
