"""The core limits, simulated: libvgpu's governor on the stand-in driver's clock in virtual time.

The model of the card and of NVML is native/fakegpu/README.md; `make bench-libvgpu ARGS=--cores`
prints the whole matrix. `test_core_shares.py` has the library as it is, in real time.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.compute.coresim import Scenario, Tenant, measured_s, simulate

POINTS = 5
"""Allowed difference between a share and its limit, in percentage points of the card."""
WINDOWS = ((100, 0, 0), (167, 300, 30), (1000, 0, 0), (1000, 1000, 0))
"""(sample length in ms, delay in ms, samples that go missing in percent)"""
KERNELS_US = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


def scenario(
    limits: tuple[int, ...], kernel_us: float, window: tuple[int, int, int], sm_count: int = 132
) -> Scenario:
    sample_ms, delay_ms, missing_percent = window
    return Scenario(
        tenants=[Tenant(limit_percent=limit, kernels_us=[kernel_us]) for limit in limits],
        sm_count=sm_count,
        seconds=measured_s(kernel_us * 132 / sm_count),
        sample_ms=sample_ms,
        delay_ms=delay_ms,
        missing_percent=missing_percent,
    )


def assert_shares(scenarios: list[Scenario]) -> None:
    wrong = [
        (wanted.line(), [round(tenant.percent, 1) for tenant in got])
        for wanted, got in zip(scenarios, simulate(scenarios), strict=True)
        if any(
            abs(tenant.limit_percent - had.percent) > POINTS
            for tenant, had in zip(wanted.tenants, got, strict=True)
        )
    ]
    assert not wrong


@pytest.mark.parametrize("sm_count", [20, 132, 188])
def test_two_tenants_of_30_and_70_get_their_shares(sm_count: int) -> None:
    # The kernels take the same time on every card, that is, a bigger card has bigger ones.
    assert_shares(
        [
            scenario((30, 70), kernel_us * sm_count / 132, window, sm_count)
            for kernel_us, window in itertools.product(KERNELS_US, WINDOWS)
        ]
    )


def test_the_same_grid_on_another_card_changes_nothing_but_its_length() -> None:
    assert_shares([scenario((30, 70), 2_000, WINDOWS[1], sm_count) for sm_count in (20, 132, 188)])


@pytest.mark.parametrize("limit", range(10, 100, 10))
def test_a_tenant_that_is_alone_keeps_to_its_limit(limit: int) -> None:
    assert_shares(
        [
            scenario((limit,), kernel_us, window)
            for kernel_us, window in itertools.product(KERNELS_US, WINDOWS)
        ]
    )


@settings(max_examples=60, derandomize=True)
@given(
    limits=st.tuples(st.integers(5, 45), st.integers(5, 45)),
    lengths=st.tuples(st.floats(1, 5), st.floats(1, 5)),
    window=st.tuples(
        st.sampled_from([100, 167, 500, 1000]), st.integers(0, 1000), st.integers(0, 40)
    ),
    wake_late_us=st.integers(0, 5000),
)
def test_any_two_tenants_that_fit_on_a_card_get_their_shares(
    limits: tuple[int, int],
    lengths: tuple[float, float],
    window: tuple[int, int, int],
    wake_late_us: int,
) -> None:
    kernels_us = [10**length for length in lengths]
    assert_shares(
        [
            Scenario(
                tenants=[
                    Tenant(limit_percent=limit, kernels_us=[kernel_us])
                    for limit, kernel_us in zip(limits, kernels_us, strict=True)
                ],
                seconds=measured_s(max(kernels_us)),
                sample_ms=window[0],
                delay_ms=window[1],
                missing_percent=window[2],
                more=f"wake_late_us={wake_late_us}",
            )
        ]
    )


MIXES = [(10, 1000), (10, 10, 10, 10_000), (100, 100_000), (10, 100, 1000, 10_000), (500, 3000)]


def test_kernels_of_all_lengths_in_one_program_share_its_limit() -> None:
    assert_shares(
        [
            Scenario(
                tenants=[
                    Tenant(limit_percent=30, kernels_us=mix),
                    Tenant(limit_percent=70, kernels_us=mix),
                ],
                seconds=22,
            )
            for mix in MIXES
        ]
    )


def test_without_nvml_a_tenant_that_is_alone_keeps_to_its_limit() -> None:
    assert_shares(
        [
            Scenario(
                tenants=[Tenant(limit_percent=40, kernels_us=mix)],
                seconds=22,
                more="utilization=0",
            )
            for mix in MIXES
        ]
    )


def test_without_nvml_nobody_gets_more_than_its_limit_beside_others() -> None:
    tenants = [Tenant(limit_percent=30), Tenant(limit_percent=70)]
    for got in simulate([Scenario(tenants=tenants, more="utilization=0")]):
        assert got[0].percent <= 30 + POINTS
        assert got[1].percent <= 70 + POINTS


@pytest.mark.parametrize("kernel_us", [10, 1_000, 10_000])
@pytest.mark.parametrize("processes", [2, 4, 16])
def test_processes_of_one_container_share_fairly(processes: int, kernel_us: float) -> None:
    tenants = [Tenant(limit_percent=50, kernels_us=[kernel_us], processes=processes)]
    ((got,),) = simulate([Scenario(tenants=tenants, seconds=22)])
    assert abs(got.percent - 50) <= POINTS
    assert max(got.processes) - min(got.processes) <= 0.2 * 50 / processes


@pytest.mark.parametrize("sync_every", [0, 1], ids=["many launches", "one at a time"])
@pytest.mark.parametrize(("sample_ms", "delay_ms"), [(167, 0), (1000, 1000)])
@pytest.mark.parametrize("processes", [2, 8, 16, 24])
def test_many_processes_with_long_kernels_get_the_limit_that_they_share(
    processes: int, sample_ms: int, delay_ms: int, sync_every: int
) -> None:
    """All start together with an unknown kernel: its excess is compensated in the first twenty
    seconds, and then forgotten."""
    for kernel_us, (settle_s, seconds) in itertools.product((10_000, 100_000), ((0, 20), (20, 60))):
        tenant = Tenant(
            limit_percent=30,
            kernels_us=[kernel_us],
            processes=processes,
            more=f"sync_every={sync_every}",
        )
        [[got]] = simulate(
            [
                Scenario(
                    tenants=[tenant],
                    settle_s=settle_s,
                    seconds=seconds,
                    sample_ms=sample_ms,
                    delay_ms=delay_ms,
                )
            ]
        )
        assert got.percent == pytest.approx(30, abs=POINTS), (kernel_us, settle_s)


def test_many_processes_with_long_kernels_keep_to_their_limit_without_nvml() -> None:
    tenant = Tenant(limit_percent=30, kernels_us=[100_000], processes=16)
    [[got]] = simulate([Scenario(tenants=[tenant], settle_s=0, seconds=20, more="utilization=0")])
    assert got.percent == pytest.approx(30, abs=POINTS)


def test_a_process_that_wants_less_than_its_part_leaves_the_rest_to_the_others() -> None:
    # One launches a kernel of 1 ms each 100 ms, the other as fast as it may: two tenants of one
    # card could not do that, two processes of one container can.
    lazy = Tenant(limit_percent=60, kernels_us=[1_000], more="sync_every=1 pause_us=99000")
    busy = Tenant(limit_percent=60, kernels_us=[1_000], more="same_container=1")
    _, got = simulate([Scenario(tenants=[lazy, busy], seconds=22)])[0]
    assert got.percent == pytest.approx(59, abs=POINTS)


@pytest.mark.parametrize(("before", "after"), [(60, 20), (20, 60)])
@pytest.mark.parametrize("kernel_us", [10, 1_000, 100_000])
def test_a_limit_that_changes_holds_two_seconds_later(
    before: int, after: int, kernel_us: float
) -> None:
    tenants = [Tenant(limit_percent=before, kernels_us=[kernel_us], more=f"later={after}")]
    ((got,),) = simulate([Scenario(tenants=tenants, seconds=24, settle_s=12, more="change_s=10")])
    assert got.percent == pytest.approx(after, abs=POINTS)


def test_no_launch_waits_longer_than_its_bound() -> None:
    tenants = [Tenant(limit_percent=1, kernels_us=[1_000_000], processes=3)]
    ((got,),) = simulate([Scenario(tenants=tenants, seconds=202)])
    assert got.longest_wait_s <= 15.1


ALONE_POINTS = 3


@pytest.mark.parametrize("limit", [20, 50, 80])
def test_what_a_context_cost_is_not_held_against_its_launches(limit: int) -> None:
    # A context of 300 ms, as on an H100: in NVML's first figures, before anything was launched.
    for kernel_us in (100, 1_000, 10_000):
        tenant = Tenant(limit_percent=limit, kernels_us=[kernel_us], more="startup_ms=300")
        [[got]] = simulate([Scenario(tenants=[tenant], settle_s=1, seconds=4, sample_ms=200)])
        assert got.percent == pytest.approx(limit, abs=ALONE_POINTS), kernel_us


SEEDS = range(1, 9)
WHOLE = "whole_samples=1"
"""NVML counts each of its samples for one of the processes that ran in it, as on an H100."""


@pytest.mark.parametrize("limits", [(30, 70), (20, 30), (50, 50)])
@pytest.mark.parametrize("kernel_us", [10, 100, 500])
def test_short_kernels_get_their_shares_where_nvml_hits_or_misses(
    kernel_us: float, limits: tuple[int, int]
) -> None:
    assert_shares(
        [
            replace(scenario(limits, kernel_us, (200, 0, 0)), more=f"{WHOLE} seed={seed}")
            for seed in SEEDS
        ]
    )


@pytest.mark.parametrize("kernel_us", [1_000, 2_000, 5_000, 10_000, 100_000])
def test_longer_kernels_get_their_shares_in_the_mean_of_a_minute(kernel_us: float) -> None:
    """Only NVML shows the turns that a kernel took of others, and only in many samples."""
    points: list[list[float]] = []
    for seed in SEEDS:
        wanted = scenario((30, 70), kernel_us, (200, 0, 0))
        later = replace(wanted, seconds=80, settle_s=20, more=f"{WHOLE} seed={seed}")
        [got] = simulate([later])
        points.append([got[0].percent - 30, got[1].percent - 70])
    for tenant in zip(*points, strict=True):
        assert max(tenant) <= 2 * POINTS, points
        assert abs(sum(tenant) / len(tenant)) <= POINTS, points


def test_a_tenant_that_is_alone_keeps_to_its_limit_where_samples_count_as_a_whole() -> None:
    assert_shares(
        [replace(scenario((40,), kernel_us, (200, 0, 0)), more=WHOLE) for kernel_us in KERNELS_US]
    )
