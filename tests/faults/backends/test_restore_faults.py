"""FAULT-45: yesterday's backup is restored against today's cluster, by docs/operations.md.

The ledger then knows a pod that is gone and does not know one that came since. Both must be
corrected automatically, and the running pods must not notice anything.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hamilocal.servers.binaries import postgres_home

from tests.e2e.system import System, a_pod, slice_of, wait
from tests.faults.processes import serving_pid, wait_until_back
from tests.faults.stage import Faulty, Stage

pytestmark = pytest.mark.slow

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
# The agents compare with the ledger every 15 s, and report again that a pod left.
GONE_S = 30.0
RESTORED_S = 40.0
TABLES = "SELECT pod_name, state, id FROM allocations ORDER BY pod_name"


def state_of(system: System, pod: str) -> str:
    """Return the state of the pod's allocation."""
    return system.sql(f"SELECT state FROM allocations WHERE pod_name = '{pod}'")


def live_of(system: System, pod: str) -> str:
    """The number of its live allocation."""
    return system.sql(f"SELECT id FROM allocations WHERE pod_name = '{pod}' AND ended_at IS NULL")


def tool(name: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [postgres_home() / "bin" / name, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def numbers_no_longer_used() -> str:
    """The statements of step 3."""
    lines = OPERATIONS.read_text().splitlines()
    found = [line.strip() for line in lines if line.startswith("       ") and line.endswith(";")]
    assert len(found) == 4, found
    return " ".join(found)


def restore(system: System, backup: Path) -> None:
    """Steps 1 to 4. Stopping equals scaling to 0: the services that come back are new ones."""
    dsn = str(system.described["postgres_dsn"])
    pids = {service: serving_pid(system, service) for service in ("scheduler", "metrics")}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    system.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    statements = (
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "GRANT USAGE ON SCHEMA public TO PUBLIC",
    )
    restore = (*(part for each in statements for part in ("-c", each)), "-f", backup)
    tool("psql", "-Xq", "--single-transaction", "-v", "ON_ERROR_STOP=1", *restore, dsn)
    system.sql(numbers_no_longer_used())
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for service, old_pid in pids.items():
        wait_until_back(system, service, old_pid)


@pytest.mark.row(
    point="FAULT-45",
    fault="yesterday's backup is restored against today's cluster",
    kind="lose",
    answer="missing grants are entered again from what we signed; those of pods that went are "
    "released; nothing is restarted",
    promise="SAFE-1..3 SAFE-6 LIVE-2",
)
def test_yesterdays_backup_is_made_to_fit_todays_cluster(faulty: Faulty, tmp_path: Path) -> None:
    system, stage = faulty.system, Stage(faulty)
    backup = tmp_path / "ledger.sql"
    _, stays = system.run(a_pod("goes", slice_of(2000, 10)), a_pod("stays", slice_of(2000, 10)))
    tool("pg_dump", "--file", backup, str(system.described["postgres_dsn"]))
    system.delete("goes")
    wait(lambda: state_of(system, "goes") == "released", "its agent to have reported that it left")
    [comes] = system.run(a_pod("comes", slice_of(3000, 20)))
    granted = live_of(system, "comes")

    restore(system, backup)
    started = time.monotonic()
    wait(
        lambda: live_of(system, "comes") == granted,
        "the grant that the backup lacks",
        timeout_s=RESTORED_S,
        why=lambda: system.sql(TABLES),
    )
    restored_s = time.monotonic() - started
    system.check_invariants()
    wait(
        lambda: system.ledger_difference() is None,
        "ledger = pods",
        timeout_s=GONE_S,
        why=lambda: f"{system.ledger_difference()}, {system.sql(TABLES)}",
    )

    system.check_invariants()
    reason = system.sql(
        "SELECT e.reason FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id"
        " WHERE pod_name = 'comes' AND sequence = 1"
    )
    assert "restored from its signed grant" in reason
    for pod in (stays, comes):
        now = system.pod(pod["metadata"]["name"])
        assert now is not None
        assert [s["restartCount"] for s in now["status"]["containerStatuses"]] == [0]
    # What the restored grant holds is not given again, and its end gives it back.
    system.run(a_pod("after", slice_of(1000, 10)))
    system.check_invariants()
    system.delete("comes")
    wait(lambda: system.ledger_difference() is None, "the restored grant to end")
    stage.report(restored_s, more="0 restarts, ledger = pods")
