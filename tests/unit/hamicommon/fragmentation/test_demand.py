"""A slice's demand is rounded up exactly, whatever the error of a division."""

from fractions import Fraction
from math import ceil

import pytest
from hamicommon.domain.requests import DeviceRequest
from hamicommon.fragmentation.demand import CardNeed, rounded_up, usual_pods
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters


def need(wanted: DeviceRequest, memory_mib: int = 16_000) -> CardNeed | None:
    view = clusters.view_of({"n": [clusters.card("c", memory_mib=memory_mib)]})
    [found] = usual_pods(Mix.of([PodShape(request=wanted)]), view.models, view.rules)
    return found.needs[-1]


def slice_of(*, core: int = 0, mib: int = 1, percent: int | None = None) -> DeviceRequest:
    return DeviceRequest(
        vendor="NVIDIA",
        count=1,
        memory_mib=mib if percent is None else 0,
        memory_percent=percent,
        core_percent=core,
    )


@pytest.mark.parametrize("percent", [1, 2, 3, 7, 25, 33, 50, 66, 99, 100])
def test_a_percentage_of_a_card_is_that_percentage(percent: int) -> None:
    of_cores = need(slice_of(core=percent))
    of_memory = need(slice_of(percent=percent))

    assert of_cores is not None
    assert of_memory is not None
    assert of_cores.percents == (percent, 1)
    assert of_memory.percents[1] == percent
    assert of_memory.memory == 10 * percent


@pytest.mark.parametrize("milli", [50, 140, 270, 290, 320, 350, 370, 470, 550, 590, 650, 810, 1000])
def test_the_slices_of_the_openb_trace_keep_their_size(milli: int) -> None:
    found = need(slice_of(core=milli // 10))

    assert found is not None
    assert 10 * found.percents[0] == 10 * found.core == milli


@given(mib=st.integers(1, 200_000), whole=st.integers(1, 200_000))
def test_memory_is_rounded_up_to_percent_and_permille(mib: int, whole: int) -> None:
    found = need(slice_of(mib=mib), memory_mib=whole)

    if mib > whole:
        assert found is None
    else:
        assert found is not None
        assert found.memory == ceil(Fraction(1000 * mib, whole))
        assert found.memory_percent == ceil(Fraction(100 * mib, whole))


@given(amount=st.integers(0, 10**9), whole=st.integers(1, 10**9), of=st.sampled_from([100, 1000]))
def test_rounding_up_takes_the_least_that_suffices(amount: int, whole: int, of: int) -> None:
    found = rounded_up(amount, whole, of=of)

    assert found * whole >= amount * of > (found - 1) * whole
