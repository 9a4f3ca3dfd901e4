"""Core limits in virtual time: scenarios for `native/coresim`, and what tenants got."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORESIM = Path(__file__).resolve().parents[3] / "native/coresim/build/coresim"
# The card on which a kernel's length is given; fewer SMs make it longer.
REFERENCE_SMS = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One container: processes that launch kernels as fast as they may."""

    limit_percent: int
    kernels_us: Sequence[float] = (1000,)
    processes: int = 1
    more: str = ""

    def settings(self) -> str:
        kernels = ",".join(f"{length:.3f}" for length in self.kernels_us)
        return (
            f"tenant={self.limit_percent} processes={self.processes}"
            f" kernel_us={kernels} {self.more}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    tenants: Sequence[Tenant]
    sm_count: int = REFERENCE_SMS
    seconds: float = 12
    settle_s: float = 2
    sample_ms: int = 167
    delay_ms: int = 0
    missing_percent: int = 0
    more: str = ""

    def line(self) -> str:
        head = (
            f"sm={self.sm_count} seconds={self.seconds} settle_s={self.settle_s}"
            f" sample_ms={self.sample_ms} delay_ms={self.delay_ms} missing={self.missing_percent}"
        )
        return " ".join([head, self.more, *(tenant.settings() for tenant in self.tenants)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """Shares of one tenant between settle_s and the end, in percent of the card."""

    percent: float
    processes: Sequence[float]
    longest_wait_s: float


def simulate(scenarios: Iterable[Scenario]) -> list[list[Got]]:
    """One list per scenario, one entry per tenant."""
    lines = "".join(scenario.line() + "\n" for scenario in scenarios)
    done = subprocess.run(
        [CORESIM], input=lines, capture_output=True, text=True, check=True, timeout=250
    )
    return [
        [Got(**tenant) for tenant in json.loads(line)["tenants"]]
        for line in done.stdout.splitlines()
    ]


def measured_s(longest_kernel_us: float) -> float:
    """How long to measure, so that a single kernel is a small part of it."""
    return 12 if longest_kernel_us < 30_000 else 42 if longest_kernel_us < 300_000 else 102
