"""Old rows are deleted batch by batch, and undeletable ones stay for the next round."""

from __future__ import annotations

import pytest
from hami_scheduler.reconcile.retention import KINDS, HistoryCleanup
from hami_scheduler.settings import KeptDays
from hamicommon.errors import Unavailable
from pydantic import TypeAdapter, ValidationError


class Ledger:
    def __init__(self) -> None:
        self.left = {
            "grants": 12,
            "drift": 3,
            "health": 0,
            "calls": 7,
            "capacity": 0,
            "cards": 1,
            "limits": 2,
        }
        self.away = ""

    async def forget(self, kind: str, *, keep_days: int) -> int:
        assert keep_days == 40
        if kind == self.away:
            raise Unavailable("Postgres is away")
        removed = min(5, self.left[kind])
        self.left[kind] -= removed
        return removed


ALL = dict.fromkeys(KINDS, 40)


async def skip_sleep(_: float) -> None: ...


async def test_batches_go_on_until_nothing_is_old() -> None:
    ledger = Ledger()

    gone = await HistoryCleanup(ledger, ALL, sleep=skip_sleep).once()

    assert gone == {
        "grants": 12,
        "drift": 3,
        "health": 0,
        "limits": 2,
        "calls": 7,
        "capacity": 0,
        "cards": 1,
    }
    assert not any(ledger.left.values())


async def test_what_fails_stays_and_the_others_go() -> None:
    ledger = Ledger()
    ledger.away = "grants"
    cleanup = HistoryCleanup(ledger, ALL, sleep=skip_sleep)

    assert await cleanup.once() == {
        "drift": 3,
        "health": 0,
        "limits": 2,
        "calls": 7,
        "capacity": 0,
        "cards": 1,
    }
    ledger.away = ""
    assert (await cleanup.once())["grants"] == 12


@pytest.mark.parametrize("days", [-1, 1, 29])
def test_days_that_the_ledger_would_not_honour_are_refused(days: int) -> None:
    with pytest.raises(ValidationError, match=r"0 \(forever\)|greater than or equal to 0"):
        TypeAdapter(KeptDays).validate_python(days)
