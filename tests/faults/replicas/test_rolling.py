"""Roll-outs under load: no pod fails, nothing is granted twice, whichever part is older.

Pods come and go every second. A scheduler of the older version that receives no requests runs its
loops beside the newer parts. Each part is stopped as a kubelet stops it (SIGTERM) and started again
in the same or in another version: from the last release to this one, and back. Here each part is
one process, so pods wait and creations are retried while it is stopped. A second replica avoids
that in a cluster.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.bus.permissions import agent_user
from hamicommon.k8s.types import Json
from hamilocal.servers.data.nats import (
    agent_nats_user,
    render_nats_config,
    service_nats_users,
)

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import INVARIANTS, MIB, System, wait
from tests.faults.churn import Churn
from tests.faults.processes import replica, serving_pid, wait_until_back
from tests.faults.replicas.versions import PROJECT, Versions, last_release, versions
from tests.faults.stage import check_node_files

pytestmark = pytest.mark.slow

INTERVAL_S = 1.0
PODS = 4
"""Least number of pods that run from beginning to end in each state."""
STARTS_S = 60.0
NODES = 2
AGENTS = tuple(f"node-agent-node-{number}" for number in range(NODES))
PARTS = {
    "scheduler": ("hami-scheduler", ("scheduler",)),
    "webhook": ("hami-webhook", ("webhook",)),
    "metrics": ("hami-metrics", ("metrics",)),
    "node-agent": ("hami-node-agent", AGENTS),
}
"""By part: its program, and what the supervisor calls its processes."""
STORES = ("postgres", "redis", "nats")
STOP_SIGNALS = {"postgres": signal.SIGINT}
"""Signals that images set: at SIGTERM Postgres would wait for its clients to disconnect."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder open to PostgreSQL, which runs as another user if we are root."""
    with tempfile.TemporaryDirectory(prefix="hami-rolling-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def restart(system: System, service: str) -> float:
    """Restart the service as a kubelet does; returns the seconds until it serves again."""
    began_s = time.monotonic()
    pid = serving_pid(system, service)
    os.kill(pid, STOP_SIGNALS.get(service, signal.SIGTERM))
    wait_until_back(system, service, pid)
    return time.monotonic() - began_s


def pods_run(churn: Churn, what: str) -> None:
    """Wait until pods created from now on have run."""
    known = set(churn.created_s)
    wait(
        lambda: bool(churn.errors) or len(churn.ran_s.keys() - known) >= PODS,
        f"pods to run with {what}",
        timeout_s=STARTS_S,
        why=lambda: str([name for name in churn.created_s if name not in churn.ran_s]),
    )
    assert churn.failed == [], what


def nothing_failed_and_nothing_is_granted_twice(system: System, churn: Churn) -> None:
    """Check the ledger's invariants, the nodes' files, and the cards seen by each container."""
    wait(
        lambda: churn.is_settled() or bool(churn.errors),
        "every pod to run",
        timeout_s=STARTS_S,
        why=lambda: str([name for name in churn.created_s if name not in churn.ran_s]),
    )
    wait(
        lambda: system.ledger_difference() is None,
        "ledger = pods",
        why=lambda: str(system.ledger_difference()),
    )
    assert churn.failed == []
    ledger_holds(system)
    check_node_files(system)
    for pod in system.pods():
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp") or name in churn.deleted:
            continue
        lines = system.wait_for_log(pod, "cuda", "running")
        seen = {line["total_bytes"] // MIB for line in lines if line["event"] == "device"}
        assert seen == {churn.asked_mib[name]}, name


def report(churn: Churn, what: str) -> None:
    waited_s = [
        churn.ran_s[name] - at_s for name, at_s in churn.created_s.items() if name in churn.ran_s
    ]
    measured.note(
        f"{what}: {len(churn.created_s)} pods, {len(churn.failed)} failed, longest from creation"
        f" to Running {max(waited_s):.1f} s, creations refused and tried again {churn.refused}"
    )


def test_every_part_is_restarted_under_load(cluster_kind: str) -> None:
    services = [*STORES, "scheduler", "webhook", "metrics", *AGENTS]
    if cluster_kind != "real":
        services.append("kube-scheduler")
    with running_system(cluster_kind, "--nodes", str(NODES)) as system:
        churn = Churn(system=system, every_s=INTERVAL_S, patient=True)
        took_s = {}
        with churn.running():
            pods_run(churn, "nothing restarted yet")
            for service in services:
                took_s[service] = restart(system, service)
                pods_run(churn, f"{service} restarted")
            nothing_failed_and_nothing_is_granted_twice(system, churn)
    each = ", ".join(f"{service} {seconds:.1f}" for service, seconds in took_s.items())
    report(churn, f"every part restarted under load (seconds until it served again: {each})")


def database(system: System, *argv: str) -> str:
    """`hamictl db ...` of this version."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "hamictl"), "db", *argv],
        cwd=PROJECT,
        env={
            "HAMI_POSTGRES_DSN": str(system.described["postgres_dsn"]),
            "HAMI_FOLDER": str(system.folder / "none"),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def set_rights_on_the_bus(system: System, authorization: Json | None = None) -> Json:
    """Set the rights of this version, or the given ones; returns the earlier rights."""
    path = system.folder / "nats" / "nats.conf"
    held = dict(json.loads(path.read_text()))
    before = dict(held["authorization"])
    if authorization is None:
        passwords = {each["user"]: each["password"] for each in before["users"]}
        users = [
            *service_nats_users(passwords.__getitem__),
            *(agent_nats_user(n, passwords[agent_user(n)]) for n in system_nodes()),
        ]
        text = render_nats_config(port=1, store_dir="-", server_name="-", users=users)
        ours = {each["user"]: each for each in json.loads(text)["authorization"]["users"]}
        newer = [ours.get(each["user"], each) for each in before["users"]]
        authorization = {**before, "users": newer}
    path.write_text(json.dumps({**held, "authorization": authorization}))
    restart(system, "nats")
    return before


def system_nodes() -> list[str]:
    return [f"node-{number}" for number in range(NODES)]


def roll(system: System, churn: Churn, found: Versions, *, new: bool) -> None:
    """One part after the other; pods run in every state in between."""
    library = PROJECT / "native" / "libvgpu" / "build" / "libvgpu.so"
    for part, (program, services) in PARTS.items():
        own = {"HAMI_NODE_AGENT_LIBRARY_PATH": str(library)} if part == "node-agent" else {}
        found.choose(program, new=new, **own)
        for service in services:
            restart(system, service)
        pods_run(churn, f"{part} and those before it {'newer' if new else 'older'}")
        ledger_holds(system)


def ledger_holds(system: System) -> None:
    """Nothing is granted twice."""
    for name, query in INVARIANTS.items():
        assert system.sql(query) == "", name


def test_a_roll_out_from_the_last_version_and_back_under_load(
    cluster_kind: str, folder: Path
) -> None:
    """On the way there and back, for any two parts A and B, A was newer than B for a while."""
    release = last_release()
    if release is None:
        pytest.skip("the history here has no release: no tag v*, no commit that cut one")
    with (
        versions(folder, release) as found,
        running_system(
            cluster_kind, "--nodes", str(NODES), environment=found.environment
        ) as system,
    ):
        churn = Churn(system=system, every_s=INTERVAL_S, patient=True)
        with churn.running():
            pods_run(churn, f"everything of {release.name}")
            database(system, "upgrade", "--before-rollout")
            pods_run(churn, f"everything of {release.name} and the newer schema")
            older_rights = set_rights_on_the_bus(system)
            pods_run(churn, f"everything of {release.name} and the newer rights on the bus")
            with replica(system, folder):  # of the release, as a replica that ends last
                roll(system, churn, found, new=True)
            database(system, "upgrade")
            database(system, "check")
            pods_run(churn, "everything of this version")
            set_rights_on_the_bus(system, older_rights)
            roll(system, churn, found, new=False)
            nothing_failed_and_nothing_is_granted_twice(system, churn)
        database(system, "check")
    report(
        churn,
        f"from {release.name} to this version and back, each pair of parts of different versions",
    )
