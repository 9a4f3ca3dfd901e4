"""Processor time and memory of the agent, and the stand-in driver's share of both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import time
from pathlib import Path

from hami_node_agent.adapters.nvml.driver import NvmlDriver
from hami_node_agent.usage.regions import layout

from bench.figures import cpu_s
from tests.integration.node_agent.machine import Machine

CHANGE_INTERVAL_S = 1.0
"""Approximate interval at which a container that computes touches its region."""


def driver_cpu_s(calls: int, pause_s: float) -> float:
    """CPU time of the calls to the driver every five seconds, without the rest of the agent.

    They are made with a pause between them, as in the agent: without it they find every cache warm
    and take a quarter less.
    """
    driver = NvmlDriver(sysfs_root=Path("/nowhere"), fallback_memory_mib=0)
    driver.start()
    cards = driver.cards()
    began = time.process_time()
    for _ in range(calls):
        time.sleep(pause_s)
        driver.processes()
        driver.samples()
        driver.probe()
    spent = time.process_time() - began
    assert cards
    driver.stop()
    return spent / calls


def running_ms(pid: int) -> float:
    """CPU time of the threads that a process has, to the nanosecond."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e6


def mapped_mb(pid: int, name: str) -> float:
    """Resident pages of files with that name."""
    kib, counted = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            counted = line.endswith(f"/{name}")
        elif fields[0] == "Rss:" and counted:
            kib += int(fields[1])
    return kib * 1024 / 1e6


async def core_percent(pid: int, seconds: float, regions: list[Path]) -> float:
    """CPU of a process over some seconds, in percent of a core, while these regions change."""
    files = [os.open(region, os.O_RDWR) for region in regions]
    total_at = layout.V1.slots_at + layout.V1.memory_at + layout.MemoryV1.total_bytes.offset
    used, began = cpu_s(pid), time.monotonic()
    while time.monotonic() - began < seconds:
        stamp = int(time.time())
        for file in files:
            os.pwrite(file, struct.pack("<Q", stamp), total_at)
        await asyncio.sleep(CHANGE_INTERVAL_S)
    for file in files:
        os.close(file)
    return (cpu_s(pid) - used) / (time.monotonic() - began) * 100


async def driver_core_percent(node: Machine, every_s: float) -> float:
    """Return the cost of looking at the driver so often, in percent of a core."""
    command = [sys.executable, "-m", "bench.node_agent", "--driver"]
    looking = await asyncio.create_subprocess_exec(
        *command, env=os.environ | node.env(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await looking.communicate()
    return float(output) / every_s * 100
