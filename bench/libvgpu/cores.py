"""The core limits in virtual time: the whole matrix, as a table.

Two tenants of 30 and 70 % on cards of 20, 132 and 188 SMs, and single tenants of 10 to 90 %, for
kernels of 10 us to 1 s and every kind of NVML sample. Each cell is the largest difference between a
share and its limit, in percentage points of the card, from two seconds after the start on. The
governor is libvgpu's, the card is the stand-in driver's (native/fakegpu/README.md): simulated, not
measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import write_results
from tests.native.compute.coresim import Scenario, Tenant, measured_s, simulate

POINTS = 5.0
SMS = (20, 132, 188)
KERNELS_US = (10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000, 1_000_000)
SAMPLES = ((100, 0, 0), (167, 0, 0), (500, 0, 0), (1000, 0, 0), (1000, 1000, 0), (167, 300, 30))
"""(length in ms, delay in ms, missing in percent)"""
ALONE = tuple(range(10, 100, 10))
NODES_OF_A_GRAPH = 20
TENANTS: dict[str, tuple[tuple[int, ...], int, Sequence[int]]] = {
    **{f"30 and 70, {sms} SMs": ((30, 70), sms, (1,)) for sms in SMS},
    "30 and 70, graphs and kernels": ((30, 70), 132, (1, NODES_OF_A_GRAPH)),
    **{f"{limit} alone": ((limit,), 132, (1,)) for limit in ALONE},
}


def scenario(
    limits: Sequence[int], sms: int, scale: Sequence[int], us: float, sample: tuple[int, int, int]
) -> Scenario:
    """`scale`: of the lengths of each tenant's launches; a graph of 20 kernels is 20 times one."""
    sizes = [us * sms / 132 * scale[at % len(scale)] for at in range(len(limits))]
    return Scenario(
        tenants=[
            Tenant(limit_percent=limit, kernels_us=[size])
            for limit, size in zip(limits, sizes, strict=True)
        ],
        sm_count=sms,
        seconds=measured_s(us * max(scale)),
        sample_ms=sample[0],
        delay_ms=sample[1],
        missing_percent=sample[2],
    )


def off(wanted: Scenario, shares: Sequence[float]) -> float:
    """Largest distance of a share from its limit, in points."""
    return max(
        abs(share - tenant.limit_percent)
        for tenant, share in zip(wanted.tenants, shares, strict=True)
    )


def run() -> int:
    """Print and write the table; return 1 if a difference exceeds five points."""
    worst = 0.0
    found: dict[str, dict[str, float]] = {}
    print("largest difference in points, by length of a kernel")
    print(f"{'':32}" + "".join(f"{us:>9,} us" for us in KERNELS_US))
    for name, (limits, sms, scale) in TENANTS.items():
        row: dict[str, float] = {}
        for us in KERNELS_US:
            wanted = [scenario(limits, sms, scale, us, sample) for sample in SAMPLES]
            got = simulate(wanted)
            row[str(us)] = max(
                off(one, [tenant.percent for tenant in tenants])
                for one, tenants in zip(wanted, got, strict=True)
            )
        found[name] = row
        worst = max(worst, *row.values())
        print(f"{name:32}" + "".join(f"{value:12.1f}" for value in row.values()), flush=True)
    runs = len(TENANTS) * len(KERNELS_US) * len(SAMPLES)
    print(f"{runs} runs; the largest difference is {worst:.1f} points, {POINTS:.0f} are allowed")
    write_results("cores", found)
    return 0 if worst <= POINTS else 1
