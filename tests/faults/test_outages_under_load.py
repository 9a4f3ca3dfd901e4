"""Postgres, Redis and NATS each unavailable while pods come and go: the promises hold, no loss.

`hangs` is SIGSTOP: connections stay open without answers. `gone` is kill -9 without a restart:
connections are refused. While NATS is unavailable, pods are placed and run. While Redis is, so are
pods on nodes that bind late, and none is bound on nodes that need the node lock. While Postgres is,
no pod is granted anything: each gets the reason. Running containers notice nothing. Afterwards the
ledger equals the pods within 30 s, every pod's history is without a gap, and the bus has every
event of the ledger exactly once by its deduplication id.
"""

import asyncio
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nats
import pytest
from hamicommon.events import EVENTS_STREAM

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait
from tests.faults.churn import POLL_S, Churn
from tests.faults.processes import suspend_service, take_down_service
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

BEFORE_S = 10.0
SHORT_S = 20.0
LONG_S = 600.0
RECOVERED_S = 30.0
"""Promise LIVE-2."""
INTERVAL_S = 1.0
"""Interval between new pods."""
LONG_INTERVAL_S = 10.0
"""Interval in an outage of ten minutes: slices of deleted pods are kept for five, because no agent
can report that they left, and the cluster has only 80 slots."""
NO_LEDGER = re.compile("Postgres (is not available|at .* can't be reached)")
"""Messages on a pod without a ledger: of a lost connection, or of a refused new one."""
NO_LOCK = re.compile("Redis is unavailable .* nodes that need the node lock get no pod")
STARTS_S = 60.0
"""Time within which a pod that can run does, on a busy machine."""


@contextmanager
def outage(system: System, service: str, way: str) -> Iterator[None]:
    """Make the service unavailable inside the block; it serves soon afterwards."""
    if way == "hangs":
        with suspend_service(system, service):
            yield
        return
    with take_down_service(system, service):
        yield


def _cases() -> Iterator[Any]:
    for service in ("postgres", "redis", "nats"):
        for way in ("hangs", "gone"):
            yield pytest.param("lock", service, way, SHORT_S, id=f"{service}-{way}-20s")
    for way in ("hangs", "gone"):
        yield pytest.param("lock", "nats", way, LONG_S, id=f"nats-{way}-600s")
    for way in ("hangs", "gone"):
        yield pytest.param("late", "redis", way, SHORT_S, id=f"redis-{way}-20s-late")


@pytest.fixture(scope="module")
def loaded_cluster(request: pytest.FixtureRequest) -> Iterator[System]:
    """Two nodes with four cards each, by how they bind; Postgres is durable there."""
    with running_system("emulator", "--nodes", "2", "--binding", request.param) as system:
        yield system


@pytest.fixture
def loaded(loaded_cluster: System) -> Iterator[System]:
    """The module's system; after each case it has no pod and no grant."""
    yield loaded_cluster
    loaded_cluster.delete_all()
    loaded_cluster.check_invariants()


@pytest.mark.parametrize(
    ("loaded_cluster", "service", "way", "away_s"), list(_cases()), indirect=["loaded_cluster"]
)
def test_an_outage_under_load_loses_nothing(
    loaded: System,
    request: pytest.FixtureRequest,
    service: str,
    way: str,
    away_s: float,
) -> None:
    [quiet] = loaded.run(a_pod("quiet", slice_of(2048, 5)))
    churn = Churn(system=loaded, every_s=LONG_INTERVAL_S if away_s == LONG_S else INTERVAL_S)
    with churn.running():
        began_s = time.monotonic()
        wait(
            lambda: len(churn.ran_s) >= 1 + BEFORE_S / churn.every_s / 2, "the load", timeout_s=120
        )
        lost_s = time.monotonic()
        with outage(loaded, service, way):
            _sleep(churn, away_s)
            ran = sum(lost_s < at_s for at_s in churn.ran_s.values())
        back_s = time.monotonic()
        wait(
            lambda: churn.is_settled() or bool(churn.errors),
            "pods of the outage to run",
            timeout_s=STARTS_S,
            why=lambda: str([n for n in churn.created_s if n not in churn.ran_s]),
        )
    recovered_s = _wait_until_recovered(loaded, back_s)

    during_s = churn.waited_s(lost_s, back_s)
    assert churn.failed == []
    if service == "postgres":
        assert ran <= 1, "a pod was granted something without the ledger"
        assert any(NO_LEDGER.search(text) for text in churn.reasons.values()), churn.reasons
    elif service == "redis" and "late" not in request.node.callspec.id:
        assert ran <= 1, "a pod was bound without the lock of its node"
        assert any(NO_LOCK.search(text) for text in churn.reasons.values()), churn.reasons
    else:
        # One call waits for a hanging server, then it is skipped: no slower than a dead one.
        least = 0.5 * away_s / churn.every_s
        assert ran >= least, f"only {ran} pods ran while {service} was away"
    now = loaded.pod("quiet") or {}
    assert now["metadata"]["uid"] == quiet["metadata"]["uid"]
    assert [each["restartCount"] for each in now["status"]["containerStatuses"]] == [0]
    loaded.check_invariants()
    published = asyncio.run(_check_events(loaded))
    measured.note(
        f"{service} {way} for {away_s:.0f} s under load: {len(during_s)} pods came, {ran} ran "
        f"in that time; created to Running p50 {_p50(churn.waited_s(began_s, lost_s))} s before, "
        f"{_p50(during_s)} s during (longest {max(during_s, default=0):.1f} s); ledger = pods "
        f"{recovered_s:.1f} s after; {published}"
    )


def _sleep(churn: Churn, away_s: float) -> None:
    deadline_s = time.monotonic() + away_s
    while time.monotonic() < deadline_s and not churn.errors:
        time.sleep(POLL_S)


def _wait_until_recovered(system: System, back_s: float) -> float:
    """Wait for LIVE-2 (ledger = pods, every fact published); return seconds after the return."""
    waits = (
        "SELECT (SELECT count(*) FROM allocation_events WHERE published_at IS NULL)"
        " + (SELECT count(*) FROM outbox WHERE published_at IS NULL)"
    )
    wait(
        lambda: system.ledger_difference() is None and system.sql(waits) == "0",
        "ledger = pods, and every fact on the bus",
        timeout_s=RECOVERED_S,
        why=lambda: f"{system.ledger_difference()}; {system.sql(waits)} facts wait",
    )
    return time.monotonic() - back_s


def _p50(values: list[float]) -> str:
    return f"{statistics.median(values):.1f}" if values else "-"


async def _check_events(system: System) -> str:
    """Every event to announce is on the bus, once by its deduplication id."""
    announced = "SELECT id FROM allocation_events WHERE state <> 'binding'"
    wanted = set(map(int, system.sql(announced).split()))
    client = await nats.connect(str(system.described["nats_url"]))
    try:
        js = client.jetstream()
        last = (await js.stream_info(EVENTS_STREAM)).state.messages
        subscription = await js.subscribe("hami.events.v1.>", ordered_consumer=True)
        ids: Counter[str] = Counter()
        events: Counter[int] = Counter()
        for _ in range(last):
            message = await subscription.next_msg(timeout=PATIENCE_S)
            ids[(message.headers or {})["Nats-Msg-Id"]] += 1
            if message.subject.startswith("hami.events.v1.allocation."):
                events[json.loads(message.data)["event_id"]] += 1
        await subscription.unsubscribe()
    finally:
        await client.close()
    assert events.keys() == wanted, f"lost: {wanted - events.keys()}"
    again = {name: count for name, count in ids.items() if count > 1}
    assert not again, f"on the bus more than once: {again}"
    return f"{len(wanted)} events in the ledger, each once on the bus"
