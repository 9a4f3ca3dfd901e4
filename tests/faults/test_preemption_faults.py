"""A fault at every step of a preemption: two pods end for one that waits, and no other does.

Each case has one node with one card: `low-0` and `low-1` have to end for `high`, `stays` may not.
Whatever fails, `high` finally gets the room, both pods ended for it once, and SAFE-7 holds.
"""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tests import measured
from tests.e2e.conftest import checked_system
from tests.e2e.preempting import (
    BUDGETS,
    FINALIZER,
    HIGH,
    PODS,
    let_go,
    patch,
    pod_of,
    preempting_system,
    release_finalizers,
    room_of,
    set_budget,
)
from tests.e2e.system import System, wait
from tests.faults.control_plane.api_proxy import proxy_services
from tests.faults.processes import kill, replica, suspend_service, wait_until_back
from tests.faults.rows import row_of
from tests.faults.stage import MEASURED, Failpoints, since

pytestmark = pytest.mark.faults
row = partial(pytest.mark.row, point="SAFE-7", promise="SAFE-1 SAFE-7 LIVE-1 LIVE-2")

LATE_S = 30.0
"""The fault lasts so long: there is no event to wait for."""
ONE_ROOM = "the room is in the ledger, and the next look goes on with it"
EVICTION_RETRY = "asked again at the next look; an eviction is sent once more at the most"
CASES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "store.commit.after",
        "the plan is written with its room, the answer is lost",
        ONE_ROOM,
        {"kill": "kill", "error": "error*1"},
    ),
    (
        "postgres.commit",
        "inside the plan's transaction",
        "nothing was written; it is planned again",
        {"kill": "kill", "error": "error*2"},
    ),
    (
        "pods.nominate.before",
        "the plan is written, the pod is not nominated yet",
        ONE_ROOM,
        {"kill": "kill", "error": "error*3", "delay": "delay:2*1"},
    ),
    (
        "pods.nominate.after",
        "the pod is nominated, nobody is evicted yet",
        ONE_ROOM,
        {"kill": "kill"},
    ),
    # The dry run passes the points of `evict` twice.
    (
        "pods.evict.before",
        "before the first eviction",
        EVICTION_RETRY,
        {"kill": "kill@2", "error": "error*3@2", "delay": "delay:3*1@2"},
    ),
    (
        "pods.evict.after",
        "the first pod is evicted, the answer is lost",
        EVICTION_RETRY,
        {"kill": "kill@2", "error": "error*2@2"},
    ),
    (
        "pods.set_conditions.before",
        "the first pod is evicted, its condition is not written",
        "the event and the ledger have the reason, too",
        {"kill": "kill", "error": "error*9"},
    ),
    (
        "rooms.note_eviction.before",
        "the first pod is evicted, which is not written yet",
        EVICTION_RETRY,
        {"kill": "kill", "error": "error*2"},
    ),
    ("rooms.note_eviction.after", "between two evictions", ONE_ROOM, {"kill": "kill"}),
    (
        "rooms.is_held.before",
        "the ledger can't be asked whether the room is held still",
        "nobody ends until it answers",
        {"error": "error*3"},
    ),
    (
        "rooms.list_held_rooms.before",
        "the ledger's rooms can't be read",
        "those that are known stay closed to others",
        {"error": "error*4@1"},
    ),
    (
        "pods.annotate.before",
        "the cards are back, the pod is not woken yet",
        "it is woken at the next look",
        {"kill": "kill", "error": "error*2"},
    ),
    ("pods.bind.before", "the room is taken, the pod is not bound", ONE_ROOM, {"kill": "kill"}),
    (
        "pods.bind.after",
        "the pod is bound in its room, the answer is lost",
        "the pod is read back and the row follows",
        {"kill": "kill", "error": "error*1"},
    ),
)
QUICK = ("SAFE-7-rooms.note_eviction.after-kill",)


def cases() -> Iterable[object]:
    """Every point with every kind; those that are not quick carry the mark `slow`."""
    for point, what, answer, kinds in CASES:
        for kind, plan in kinds.items():
            name = f"SAFE-7-{point}-{kind}"
            mark = row(fault=f"`{point}`: {what}", kind=kind, answer=answer)
            marks = [mark] if name in QUICK else [mark, pytest.mark.slow]
            yield pytest.param(f"{point}={plan}", id=name, marks=marks)


@pytest.fixture(scope="module")
def preempting(cluster_kind: str) -> Iterator[Failpoints]:
    """A system of one node with one card, whose scheduler fails where the cases have it."""
    with tempfile.TemporaryDirectory(prefix="hami-faults-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "faults"
        file.touch()
        environment = {"HAMI_FAILPOINTS_FILE": str(file)}
        flags = ("--nodes", "1", "--gpus", "1", "--most-ends", "1000")
        with preempting_system(cluster_kind, *flags, environment=environment) as system:
            yield Failpoints(system=system, file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Failpoints):
    """One case, on a card that is full."""

    name: str
    began_s: float

    def note(self) -> None:
        """Note how long it took until all was well."""
        MEASURED[self.name] = since(self.began_s)
        measured.note(f"{self.name}: {since(self.began_s):.1f} s from the fault until all was well")


@pytest.fixture
def full(preempting: Failpoints, request: pytest.FixtureRequest) -> Iterator[Case]:
    """The system with its card full."""
    has_row = request.node.get_closest_marker("row") is not None
    name = row_of(request.node).name if has_row else request.node.name
    with checked_system(preempting.system) as system:
        lows = (pod_of("batch", f"low-{number}", 25_000) for number in range(2))
        system.run(*lows, pod_of("urgent", "stays", 20_000))
        yield Case(system=system, file=preempting.file, name=name, began_s=time.monotonic())
        preempting.plan()
        release_finalizers(system)


def come(system: System) -> None:
    assert system.create(pod_of("urgent", "high", 50_000)).status_code == 201


def check_room_was_taken(case: Case) -> None:
    """Check that `high` has the cards, and that only the two pods ended for it."""
    system = case.system
    system.wait_for_phase("high", "Running", timeout_s=90)
    assert {pod["metadata"]["name"] for pod in system.pods()} == {"high", "stays"}
    uid = system.get(HIGH)["metadata"]["uid"]
    ended = system.sql(
        "SELECT string_agg(DISTINCT pod_name, ' ' ORDER BY pod_name) FROM v_preempted_pods"
        f" WHERE for_pod_uid = '{uid}'"
    )
    assert ended == "low-0 low-1"
    system.check_invariants()
    case.note()


@pytest.mark.parametrize("plan", list(cases()))
def test_the_pod_gets_its_room(full: Case, plan: str) -> None:
    full.plan(plan)
    come(full.system)

    check_room_was_taken(full)


@contextmanager
def first_eviction(full: Case) -> Iterator[None]:
    """Hold the loop for three seconds after it has evicted one of the two pods."""
    full.plan("rooms.note_eviction.after=delay:3*1")
    come(full.system)
    wait(lambda: len(deleted_pods(full.system)) == 1, "the first pod to be evicted")
    yield
    full.plan()


def deleted_pods(system: System) -> set[str]:
    """The pods of the two that may end which are deleted or being deleted."""
    about = (pod["metadata"] for pod in system.pods())
    return {"low-0", "low-1"} - {each["name"] for each in about if "deletionTimestamp" not in each}


@row(
    fault="the pod that waits is deleted between two evictions",
    kind="error",
    answer="its room ends, and nobody ends for it any more",
)
def test_nobody_ends_for_a_pod_that_was_deleted_between_two_evictions(full: Case) -> None:
    system = full.system
    with first_eviction(full):
        system.delete("high")
        wait(lambda: room_of(system, "high") == "released", "the room to end")

    # A later pod shows that the loop continued.
    assert system.create(pod_of("critical", "next", 2_000)).status_code == 201
    system.wait_for_phase("next", "Running")
    assert len(deleted_pods(system)) == 1
    full.note()


@pytest.mark.slow
def test_a_budget_that_closes_between_two_evictions_gives_the_room_up(
    full: Case, cluster_kind: str
) -> None:
    if cluster_kind != "real":
        pytest.skip("the emulated API server has no PodDisruptionBudgets")
    system = full.system
    for name in ("low-0", "low-1"):
        patch(system, f"{PODS}/{name}", {"metadata": {"labels": {"app": "low"}}})
    selector = {"selector": {"matchLabels": {"app": "low"}}, "minAvailable": 2}
    body = {"metadata": {"name": "low"}, "spec": selector}
    assert system.api.post(BUDGETS, json=body).status_code == 201
    try:
        set_budget(system, "low", 2)
        with first_eviction(full):
            set_budget(system, "low", 0)
        wait(lambda: room_of(system, "high") == "failed", "the room to be given up")
        assert len(deleted_pods(system)) == 1
        assert any("could not be evicted" in text for _, text in system.events("high"))
    finally:
        system.api.delete(f"{BUDGETS}/low")


@row(
    fault="a pod that was to end is deleted by somebody else",
    kind="error",
    answer="the plan goes on with the other",
)
@pytest.mark.slow
def test_a_pod_that_somebody_else_deletes_is_room_too(full: Case) -> None:
    full.plan("pods.nominate.before=delay:2*1")
    come(full.system)
    wait(lambda: room_of(full.system, "high") == "reserved", "the room to be held")
    full.system.delete("low-0")

    check_room_was_taken(full)


@row(
    fault="the nomination is lost to another writer",
    kind="lose",
    answer="nominated again at the next look",
)
@pytest.mark.slow
def test_a_nomination_that_another_writer_takes_away_comes_back(full: Case) -> None:
    system = full.system
    patch(system, f"{PODS}/low-0", {"metadata": {"finalizers": [FINALIZER]}})
    come(system)
    wait(lambda: len(deleted_pods(system)) == 2, "both pods to be evicted")

    patch(system, f"{HIGH}/status", {"status": {"nominatedNodeName": None}})

    wait(
        lambda: system.get(HIGH)["status"].get("nominatedNodeName") == "node-0",
        "the pod to be nominated again",
    )
    let_go(system, "low-0")
    check_room_was_taken(full)


@row(
    fault="the scheduler's watches are 30 s late",
    kind="delay",
    answer="plans and evictions read the pods themselves; nobody else ends",
)
@pytest.mark.slow
@pytest.mark.parametrize("state", ["", "reserved"], ids=["the pod comes", "its room is held"])
def test_a_watch_that_is_late_ends_nobody_else(full: Case, state: str) -> None:
    system = full.system
    with proxy_services(system, ("scheduler",)) as proxy:
        if state:
            full.plan("pods.nominate.before=delay:2*1")
            come(system)
            wait(lambda: room_of(system, "high") == state, "the room to be held")
        proxy.holds_watches = True
        if not state:
            come(system)
        time.sleep(LATE_S)
        proxy.holds_watches = False
        check_room_was_taken(replace(full, began_s=time.monotonic()))


@row(
    fault="PostgreSQL is killed while a room is held",
    kind="kill",
    answer="nobody ends until it is back; the room is as it was",
)
@pytest.mark.slow
def test_a_room_outlives_its_database(full: Case) -> None:
    with first_eviction(full):
        old = kill(full.system, "postgres")
    wait_until_back(full.system, "postgres", old)

    check_room_was_taken(full)


@row(
    fault="the node's agent does not report the end of the pods",
    kind="delay",
    answer="the room expires; the pod is tried again when the agent is back",
)
@pytest.mark.slow
def test_a_room_whose_node_reports_nothing_expires(full: Case) -> None:
    system = full.system
    with suspend_service(system, "node-agent-node-0"):
        come(system)
        wait(lambda: room_of(system, "high") == "reserved", "the room to be held")
        wait(
            lambda: room_of(system, "high") in ("expired", "failed"),
            "the room to end",
            timeout_s=120,
        )
        system.check_invariants()

    system.wait_for_phase("high", "Running", timeout_s=90)
    assert {pod["metadata"]["name"] for pod in system.pods()} == {"high", "stays"}
    full.note()


@row(
    fault="two replicas are active and plan at the same time",
    kind="duplicate",
    answer="one room a pod (partial unique index); the two pods end once",
)
@pytest.mark.slow
def test_two_replicas_that_plan_at_the_same_time_make_one_room(full: Case, tmp_path: Path) -> None:
    with replica(full.system, tmp_path):
        come(full.system)
        check_room_was_taken(full)
    uid = full.system.get(HIGH)["metadata"]["uid"]
    rooms = f"SELECT count(*) FROM allocations WHERE pod_uid = '{uid}'"
    assert full.system.sql(rooms) == "1"


@row(
    fault="the scheduler dies at any moment, 0.5 to 4 s after the pod came",
    kind="kill",
    answer="the next one goes on with the room that the ledger has",
)
@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
def test_a_scheduler_that_dies_at_any_moment_loses_no_room(full: Case, after_s: float) -> None:
    killed = full.system.pid_of("scheduler")
    assert killed is not None
    come(full.system)

    # The moment is the case; nothing is waited for.
    threading.Timer(after_s, os.kill, (killed, signal.SIGKILL)).start()

    check_room_was_taken(full)
    wait_until_back(full.system, "scheduler", killed)
