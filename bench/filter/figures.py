"""Figures of a process and of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.engine import machine as engine_machine


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
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """Describe the machine that the benchmark ran on."""
    return {**engine_machine(), "system": platform.platform(terse=True)}
