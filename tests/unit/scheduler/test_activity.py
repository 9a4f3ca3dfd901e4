"""The Lease's holder, its end, and a replica's reaction to both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hami_scheduler.activity import Activity, SchedulerLease, StandingBy
from hamicommon.k8s.types import Json

from tests.unit.clock import Clock
from tests.waiting import PATIENCE_S

POD = "hami-scheduler-6d5f-b"


def make_lease(identity: str | None, renewed: str = "1", duration_s: int | None = 6) -> Json:
    spec: dict[str, Any] = {"renewTime": renewed, "leaseDurationSeconds": duration_s}
    return {"spec": spec if identity is None else spec | {"holderIdentity": identity}}


def watched_lease(*leases: Json, clock: Clock | None = None) -> SchedulerLease:
    lease = SchedulerLease("hami-system/hami-scheduler", POD, clock or Clock(100.0))
    for each in leases:
        lease.on_upsert(each, None)
    return lease


OTHERS = make_lease("other_1")


@pytest.mark.parametrize(
    ("identity", "is_here"),
    [
        (f"{POD}_0a1b-2c3d", True),
        (POD, True),
        (f"{POD}_", True),
        (f"{POD}_a_b", True),
        (f"{POD}b_0a1b", False),
        ("hami-scheduler-6d5f_0a1b", False),
        (f"other_{POD}", False),
        ("hami-kube-scheduler-77_0a1b", False),
        ("", False),
        (None, False),
    ],
)
def test_the_holders_pod_is_what_stands_before_the_underscore(
    identity: str | None, *, is_here: bool
) -> None:
    assert watched_lease(OTHERS, make_lease(identity)).is_held_here is is_here


@pytest.mark.parametrize(
    ("leases", "is_here"),
    [
        ([], False),
        ([make_lease(f"{POD}_1")], False),
        ([make_lease(f"{POD}_1"), make_lease(f"{POD}_1")], False),
        ([make_lease(f"{POD}_1"), make_lease(f"{POD}_1", "2")], True),
        ([make_lease(f"{POD}_1"), make_lease(f"{POD}_2")], True),
        (
            [make_lease(f"{POD}_1", duration_s=None), make_lease(f"{POD}_1", "2", duration_s=None)],
            False,
        ),
        ([{}, make_lease(f"{POD}_1")], True),
        ([OTHERS, make_lease(f"{POD}_1"), make_lease("other_1", "2")], False),
    ],
)
def test_a_holder_counts_once_it_was_seen_to_take_or_renew_the_lease(
    leases: list[Json], *, is_here: bool
) -> None:
    assert watched_lease(*leases).is_held_here is is_here


@pytest.mark.parametrize(("after_s", "is_here"), [(0.0, True), (5.9, True), (6.0, False)])
def test_it_ends_when_it_was_not_renewed_for_its_duration(after_s: float, *, is_here: bool) -> None:
    clock = Clock(100.0)
    lease = watched_lease(OTHERS, make_lease(f"{POD}_1"), clock=clock)

    clock.now += after_s

    assert lease.is_held_here is is_here
    lease.on_upsert(make_lease(f"{POD}_1", "2"), None)
    assert lease.is_held_here


def test_a_lease_that_was_deleted_is_nobodys_and_may_be_made_again() -> None:
    lease = watched_lease(OTHERS, make_lease(f"{POD}_1"))

    lease.on_delete({})
    assert (lease.is_held_here, lease.holder) == (False, "")
    lease.on_upsert(make_lease(f"{POD}_2"), None)
    assert lease.is_held_here


@pytest.mark.parametrize(
    ("leases", "later_s", "sentence"),
    [
        ([], 0.0, "no pod holds the Lease hami-system/hami-scheduler"),
        ([OTHERS, make_lease(None)], 0.0, "no pod holds the Lease hami-system/hami-scheduler"),
        (
            [make_lease("other_1"), make_lease("other_1", "2")],
            0.0,
            "other holds the Lease hami-system/hami-scheduler",
        ),
        (
            [make_lease("other_1"), make_lease("other_1", "2")],
            6.0,
            "other has not renewed the Lease hami-system/hami-scheduler",
        ),
    ],
)
async def test_a_replica_that_stands_by_names_the_active_one(
    leases: list[Json], later_s: float, sentence: str
) -> None:
    clock = Clock(100.0)
    activity = Activity(watched_lease(*leases, clock=clock))
    clock.now += later_s

    with pytest.raises(StandingBy, match=f"^this replica is on standby: {sentence}$"):
        activity.check()


def test_a_replica_that_reads_the_ledger_still_is_not_active() -> None:
    with pytest.raises(StandingBy, match="has just become active and is still reading the ledger"):
        Activity(watched_lease(OTHERS, make_lease(f"{POD}_1"))).check()


async def test_without_a_lease_a_replica_is_always_active() -> None:
    activity = Activity()

    await activity.wait()
    activity.check()
    assert activity.is_active


async def test_taking_and_losing_it_wakes_who_waits() -> None:
    lease = watched_lease(OTHERS)
    async with asyncio.timeout(PATIENCE_S):
        taken = asyncio.create_task(lease.wait_until_held_here())
        await asyncio.sleep(0)
        assert not taken.done()
        lease.on_upsert(make_lease(f"{POD}_1"), None)
        await taken

        lost = asyncio.create_task(lease.wait_until_lost())
        await asyncio.sleep(0)
        lease.on_upsert(make_lease(f"{POD}_1", "2"), None)
        await asyncio.sleep(0)
        assert not lost.done()
        lease.on_upsert(make_lease("other_1", "3"), None)
        await lost


async def test_one_that_is_not_renewed_is_lost_without_an_event() -> None:
    lease = SchedulerLease("ns/lease", POD)
    lease.on_upsert(OTHERS, None)
    lease.on_upsert(make_lease(f"{POD}_1", duration_s=1), None)

    async with asyncio.timeout(PATIENCE_S):
        await lease.wait_until_lost()
