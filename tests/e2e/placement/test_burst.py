"""100 one-slice pods together onto one node of ten cards.

kube-scheduler is stopped until all pods exist: the case measures the way of the pods, and not how
fast one client creates them.
"""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

from tests import measured
from tests.e2e.system import System, a_pod, slice_of, wait

PODS = 100
TIMEOUT_S = 120.0


def test_a_hundred_pods_on_one_node_all_run(crowded: System) -> None:
    system = crowded
    scheduler = _kube_scheduler(system)
    os.kill(scheduler, signal.SIGSTOP)
    for number in range(PODS):
        pod = a_pod(f"burst-{number}", slice_of(8192, 10), command=("vgpu-probe", "--no-launch"))
        assert system.create(pod).status_code == 201
    used_s = _cpu_s(system)
    os.kill(scheduler, signal.SIGCONT)
    began_s = time.monotonic()

    wait(
        lambda: sum(pod["status"].get("phase") == "Running" for pod in system.pods()) == PODS,
        "all pods to run",
        timeout_s=TIMEOUT_S,
        why=lambda: str(
            [
                (pod["metadata"]["name"], pod["status"])
                for pod in system.pods()
                if pod["status"].get("phase") != "Running"
            ][:3]
        ),
    )

    measured.note(
        f"{PODS} one-slice pods at once on one node of ten cards: all running after"
        f" {time.monotonic() - began_s:.1f} s; {_phases(system)};"
        f" {_cpu_text(used_s, _cpu_s(system))}"
    )
    wait(
        lambda: system.ledger_difference() is None,
        "ledger = pods",
        why=lambda: str(system.ledger_difference()),
    )
    system.check_invariants()
    assert system.sql("SELECT DISTINCT used_slots, used_memory_mib FROM devices") == "10|81920"


def _kube_scheduler(system: System) -> int:
    """The pid of the one that belongs to this system, ours or the real one."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        ours = "kubelocal.kubescheduler" in arguments or arguments[0].endswith("/kube-scheduler")
        if ours and any(str(system.folder.parent) in argument for argument in arguments):
            return int(entry.name)
    raise AssertionError("no kube-scheduler runs")


def _cpu_s(system: System) -> dict[str, float]:
    """CPU seconds of each service until now, with its children: on a busy machine they show more
    than the time on the wall."""
    services = json.loads((system.folder / "state.json").read_text())["services"]
    names = {int(entry["pid"]): name for name, entry in services.items() if entry.get("pid")}
    used: Counter[str] = Counter()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                name = names.get(int(entry.name)) or names.get(int(fields[1]))
                if name is not None:
                    used[name] += int(fields[11]) + int(fields[12])
    return {name: ticks / os.sysconf("SC_CLK_TCK") for name, ticks in used.items()}


def _cpu_text(before: dict[str, float], after: dict[str, float]) -> str:
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    most = sorted(spent, key=lambda name: -spent[name])[:6]
    each = ", ".join(f"{name} {spent[name]:.1f}" for name in most)
    return f"CPU {sum(spent.values()):.1f} s ({each})"


def _phases(system: System) -> str:
    """Seconds from the first reservation until the last pod was through each step."""
    row = system.sql(
        "SELECT "
        + ", ".join(
            f"round(extract(epoch FROM max({step}_at) - min(reserved_at)), 1)"
            for step in ("reserved", "binding", "bound", "allocated")
        )
        + " FROM allocations WHERE pod_name LIKE 'burst-%'"
    )
    reserved, binding, bound, allocated = row.split("|")
    return (
        f"the last one reserved {reserved} s after the first, in /bind after {binding} s, bound "
        f"after {bound} s, allocated after {allocated} s"
    )
