"""Promise LIVE-3: a pod that fits is tried again within 2 s of capacity becoming free."""

import statistics
import time

from tests import measured
from tests.e2e.system import System, a_pod, slice_of, wait
from tests.waiting import Unhurried

CARDS = 10
SLICE_MIB = 40_960
HELD = 2 * CARDS
WAITING = 25
FREED = 20
"""Fewer than wait, so that a pod always waits in vain beside the one that fits."""
APART_S = 0.7
RETRIED_S = 2.0
"""On a quiet machine."""
PROBE = ("vgpu-probe", "--no-launch")


def test_waiting_pods_come_again_within_two_seconds_of_each_slice(crowded: System) -> None:
    system = crowded
    holders = [f"holder-{number}" for number in range(HELD)]
    system.run(*(a_pod(name, slice_of(SLICE_MIB), command=PROBE) for name in holders))
    for number in range(WAITING):
        pod = a_pod(f"waiter-{number}", slice_of(SLICE_MIB), command=PROBE)
        assert system.create(pod).status_code == 201
    for number in range(WAITING):
        system.wait_for_reason(f"waiter-{number}")

    freeing = Unhurried()
    for name in holders[:FREED]:
        path = f"/api/v1/namespaces/default/pods/{name}"
        answer = system.api.request("DELETE", path, json={"gracePeriodSeconds": 1})
        assert answer.is_success, answer.text
        time.sleep(APART_S)
    wait(
        lambda: sum(pod["status"].get("phase") == "Running" for pod in system.pods()) == HELD,
        "the slices to be taken again",
        why=lambda: system.sql("SELECT pod_name, state FROM allocations"),
    )
    promised_s = RETRIED_S * freeing.slowdown

    rows = system.sql(
        "WITH freed AS (SELECT ended_at, row_number() OVER (ORDER BY ended_at) AS number"
        "  FROM allocations WHERE pod_name LIKE 'holder-%' AND ended_at IS NOT NULL),"
        " taken AS (SELECT reserved_at, row_number() OVER (ORDER BY reserved_at) AS number"
        "  FROM allocations WHERE pod_name LIKE 'waiter-%' AND ended_at IS NULL)"
        " SELECT extract(epoch FROM reserved_at - ended_at) FROM freed JOIN taken"
        " USING (number) ORDER BY number"
    ).splitlines()
    retried_s = [float(row) for row in rows]
    measured.note(
        f"{WAITING} pods wait, {FREED} slices freed one by one: taken again "
        f"{statistics.median(retried_s):.2f} s after (p50), {max(retried_s):.2f} s at most"
    )
    assert len(retried_s) == FREED
    # No pod gets a slice before it is free; a holder's replacement came before the holder went.
    assert min(retried_s) >= 0
    assert max(retried_s) < promised_s
