from collections.abc import Sequence

import pytest
from hami_node_agent.usage.regions.accounting import (
    MAX_BYTES,
    CardUse,
    Region,
    RegionCard,
    RegionHeld,
    RegionProcess,
    card_uses,
)

CARD = RegionCard(index=0, uuid="GPU-a", limit_bytes=100, core_limit_percent=30)


def a_region(*held: RegionHeld) -> Region:
    return Region(
        cards=(CARD,),
        processes=tuple(
            RegionProcess(pid=number + 1, host_pid=0, started_ticks=5, held=(one,))
            for number, one in enumerate(held)
        ),
    )


def use_of(
    *held: RegionHeld, living: Sequence[int] | None = None, measured: Sequence[float | None] = ()
) -> CardUse:
    [use] = card_uses(
        a_region(*held),
        living=range(len(held)) if living is None else living,
        measured_percent=lambda number, _uuid: measured[number] if measured else None,
    )
    return use


HELD = RegionHeld(total_bytes=6, context_bytes=1, module_bytes=2, buffer_bytes=3, core_percent=11)


def test_living_processes_are_summed() -> None:
    use = use_of(HELD, HELD)

    assert (use.total_bytes, use.context_bytes, use.module_bytes, use.buffer_bytes) == (12, 2, 4, 6)
    assert (use.processes, use.core_percent) == (2, 22)


def test_what_a_process_left_behind_does_not_count() -> None:
    assert use_of(HELD, HELD, living=[1]).total_bytes == 6


def test_a_container_without_processes_uses_nothing() -> None:
    use = use_of(HELD, living=[])

    assert (use.total_bytes, use.core_percent, use.processes) == (0, 0.0, 0)


def test_a_counter_below_zero_makes_memory_unknown() -> None:
    use = use_of(HELD, RegionHeld(total_bytes=2**64 - 1))

    assert (use.total_bytes, use.buffer_bytes) == (None, None)
    assert use_of(RegionHeld(total_bytes=MAX_BYTES)).total_bytes == MAX_BYTES


@pytest.mark.parametrize(
    ("measured", "reported", "percent"),
    [
        ([40.0, 20.0], [0, 0], 60.0),
        ([0.0, 0.0], [11, 0], 0.0),
        ([80.0, 70.0], [0, 0], 100.0),
        ([40.0, None], [0, 0], None),
        ([None, None], [11, 22], 33.0),
        ([None, None], [0, 2**40], None),
        ([None, None], [99, 99], 100.0),
    ],
)
def test_the_drivers_figure_counts_before_the_librarys(
    measured: list[float | None], reported: list[int], percent: float | None
) -> None:
    held = [RegionHeld(core_percent=one) for one in reported]

    assert use_of(*held, measured=measured).core_percent == percent
