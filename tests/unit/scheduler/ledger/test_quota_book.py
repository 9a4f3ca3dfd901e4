"""Quotas in memory."""

from __future__ import annotations

from hami_scheduler.ledger.quota import QuotaBook
from hamicommon.ledger.model import QuotaUse

MEMORY = "nvidia.com/gpumem"


def book(limit: int | None, used: int) -> QuotaBook:
    made = QuotaBook()
    made.load([QuotaUse("team", MEMORY, limit, used)])
    return made


def test_a_limit_refuses_what_is_beyond_it_with_the_figures() -> None:
    conflict = book(500, 300).conflict("team", {MEMORY: 201})

    assert conflict is not None
    assert (conflict.limit, conflict.used, conflict.wanted) == (500, 300, 201)


def test_up_to_the_limit_there_is_room() -> None:
    assert book(500, 300).conflict("team", {MEMORY: 200}) is None


def test_a_limit_of_nothing_lets_nothing_in() -> None:
    assert book(0, 0).conflict("team", {MEMORY: 1}) is not None


def test_another_namespace_and_resource_and_no_limit_have_room() -> None:
    assert book(1, 1).conflict("other", {MEMORY: 9}) is None
    assert book(1, 1).conflict("team", {"nvidia.com/gpucores": 9}) is None
    assert book(None, 1).conflict("team", {MEMORY: 9}) is None


def test_what_is_assumed_counts_until_it_is_confirmed_or_forgotten() -> None:
    quotas = book(500, 300)
    quotas.assume("team", {MEMORY: 150})
    assert quotas.conflict("team", {MEMORY: 100}) is not None

    quotas.assume("team", {MEMORY: 150}, -1)
    assert quotas.conflict("team", {MEMORY: 100}) is None

    quotas.apply([QuotaUse("team", MEMORY, 500, 450)])
    assert quotas.conflict("team", {MEMORY: 100}) is not None


def test_loading_reports_whether_something_differed() -> None:
    quotas = book(500, 300)

    assert not quotas.load([QuotaUse("team", MEMORY, 500, 300)])
    assert quotas.load([])
    assert quotas.conflict("team", {MEMORY: 999}) is None
