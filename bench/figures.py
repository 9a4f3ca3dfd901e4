"""Figures of processes and of the machine, and where a benchmark's results are written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def fdatasync_ms(folder: Path) -> float:
    """Median time of writing one 8 KiB page through to the disk."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        times = []
        for _ in range(200):
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident_mb(pid: int) -> float:
    """Resident memory of a process in 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def tree_cpu_s(root: int) -> dict[int, tuple[str, float]]:
    """Name and CPU time, by process id, of a process and of all that descend from it.

    The time has that of ended children that were waited for.
    """
    parents: dict[int, int] = {}
    spent: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text().rpartition(")")
                fields = tail.split()
                parents[int(entry.name)] = int(fields[1])
                ticks = sum(map(int, fields[11:15]))
                spent[int(entry.name)] = head.partition("(")[2], ticks / _TICKS_PER_S

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return {pid: each for pid, each in spent.items() if is_below(pid)}


def family_cpu_s(root: int) -> float:
    """CPU time of a process and of all that descend from it."""
    return sum(spent for _, spent in tree_cpu_s(root).values())


def machine() -> dict[str, Any]:
    """Describe the machine that the benchmark ran on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(models, platform.processor()),
        "cpus": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "interpreter": os.path.realpath(sys.executable),
        "system": platform.platform(terse=True),
    }


def print_machine() -> dict[str, Any]:
    """Print one line about the machine; return it."""
    found = machine()
    print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    return found


def write_results(name: str, result: Any) -> None:
    """Write bench/results/NAME.json."""
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
