"""The usage history on a store in memory."""

import pytest
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory

from tests.unit.clock import Clock
from tests.unit.metrics.usage_store import GRACE_S, START, FakeStore


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def instruments() -> MetricsInstruments:
    return MetricsInstruments()


@pytest.fixture
def history(store: FakeStore, clock: Clock, instruments: MetricsInstruments) -> UsageHistory:
    return UsageHistory(store, instruments, clock, grace_s=GRACE_S)
