"""A real card, and containers on it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from tests.native.machine import FAKEGPU, LIBVGPU

GIB = 1 << 30
# All multiprocessors of an H100 twice over; a smaller card takes several turns.
BLOCKS = 264


@dataclass(frozen=True, slots=True)
class Card:
    """The first card that the driver shows."""

    uuid: str
    name: str
    memory_mib: int


def find_card() -> Card | str:
    """The card, or why there is none."""
    command = ["nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as exc:
        return f"nvidia-smi: {exc.strerror}"
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return f"nvidia-smi ended with {done.returncode}: {done.stdout.strip()}"
    uuid, name, memory_mib = (part.strip() for part in lines[0].split(","))
    return Card(uuid, name, int(memory_mib))


def used_bytes(card: Card) -> int:
    """Return the card's used memory, as NVML shows it outside of any container."""
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


@dataclass
class Tenant:
    """Programs under libvgpu that share one region and one limits file."""

    card: Card
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def limit(self, *, memory_bytes: int = 0, cores: int = 0) -> None:
        directory = self.folder / "hami"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "limits.new").write_text(
            "hami-limits 1\npolicy force\noversubscribe 0\n"
            f"device {self.card.uuid} memory_bytes {memory_bytes} core_percent {cores}\n"
            f"region {self.folder / 'region.cache'}\n"
        )
        (directory / "limits.new").rename(directory / "limits")

    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self.card.uuid,
            "LD_PRELOAD": f"{LIBVGPU}:{FAKEGPU / 'libpathmap.so'}",
            "HAMI_PATHMAP": f"/etc/hami={self.folder / 'hami'}",
        }

    def bare_env(self) -> dict[str, str]:
        """The same without the library."""
        return {name: value for name, value in self.env().items() if name != "LD_PRELOAD"}

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, env=self.env(), stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def run(self, *command: str | Path) -> Any:
        """The last line of the program's output, as JSON."""
        return answer(self.start(*command))

    def python(self, script: str) -> Any:
        return self.run(sys.executable, "-c", script)

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


def answer(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return json.loads(output.splitlines()[-1])


@dataclass(frozen=True, slots=True)
class Load:
    """`vgpu-load` with kernels that last a given time on the card, whatever its clock is."""

    kernel_us: int
    kernel_ms: float
    """Time of one kernel with its launch, measured separately without a limit."""

    def command(self, seconds: float, *more: str) -> list[str | Path]:
        options = ["--seconds", seconds, "--blocks", BLOCKS, "--kernel-us", self.kernel_us, *more]
        return [FAKEGPU / "vgpu-load", *map(str, options)]

    def percent(self, measured: Any, kernels: int = 1) -> float:
        """Share of the card that a program's launches were, if they were `kernels` each."""
        return float(measured["launches"] * kernels * self.kernel_ms / measured["seconds"] / 10)


def measured_load(tenant: Tenant, kernel_us: int = 1000) -> Load:
    """Measure a tenant without a limit or neighbour."""
    measured = tenant.run(*Load(kernel_us, 0).command(2))
    return Load(kernel_us, measured["seconds"] * 1000 / measured["launches"])


def shares(load: Load, tenants: Sequence[Tenant], seconds: float = 12) -> list[float]:
    """Return each tenant's share while all of them launch as fast as they may."""
    running = [tenant.start(*load.command(seconds)) for tenant in tenants]
    return [load.percent(answer(process)) for process in running]
