"""The kubelet's rules for device ids."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelocal.kubelet.devices.state import (
    STOPPED_GRACE_S,
    AdmissionError,
    AllocateAnswer,
    Device,
    DeviceBook,
    DeviceCounts,
    PluginOptions,
    choose,
)

GPU = "nvidia.com/gpu"


def book_of(count: int, *, unhealthy: int = 0) -> DeviceBook:
    book = DeviceBook()
    book.register(GPU, PluginOptions())
    book.update(GPU, devices(count, unhealthy=unhealthy))
    return book


def devices(count: int, *, unhealthy: int = 0) -> list[Device]:
    return [Device(id=f"gpu-{i}", healthy=i >= unhealthy) for i in range(count)]


def take(
    book: DeviceBook, pod: str, container: str, size: int, preferred: Iterable[str] = ()
) -> frozenset[str]:
    request = book.request(pod, container, GPU, size)
    assert request is not None
    ids = choose(request, preferred, random.Random(0))
    book.keep(request, ids, AllocateAnswer(raw=b"x"))
    return ids


def test_capacity_counts_all_devices_and_allocatable_the_healthy_ones() -> None:
    assert book_of(10, unhealthy=3).counts() == {GPU: DeviceCounts(capacity=10, allocatable=7)}


def test_a_plugin_that_stays_away_loses_its_capacity_after_the_grace() -> None:
    book = book_of(10)
    book.lose(GPU, now_s=100.0)

    early = book.retire_stopped(now_s=100.0 + STOPPED_GRACE_S)
    late = book.retire_stopped(now_s=101.0 + STOPPED_GRACE_S)

    assert (early, late) == (False, True)
    assert book.counts() == {GPU: DeviceCounts(capacity=0, allocatable=0)}


def test_a_plugin_that_registers_again_has_its_devices_back() -> None:
    book = book_of(10)
    book.lose(GPU, now_s=0.0)
    book.register(GPU, PluginOptions())
    book.update(GPU, devices(4))

    assert not book.retire_stopped(now_s=2 * STOPPED_GRACE_S)
    assert book.counts() == {GPU: DeviceCounts(capacity=4, allocatable=4)}


def test_preferred_ids_are_taken_if_they_are_free() -> None:
    book = book_of(4)
    take(book, "a", "main", 1, ["gpu-2"])

    ids = take(book, "b", "main", 2, ["gpu-2", "gpu-3", "unknown"])

    assert "gpu-3" in ids
    assert "gpu-2" not in ids


def test_without_a_preference_chance_decides() -> None:
    request = book_of(100).request("a", "main", GPU, 1)
    assert request is not None

    chosen = {choose(request, [], random.Random(seed)) for seed in range(20)}

    assert len(chosen) > 5


def test_too_few_free_ids_are_refused_with_the_kubelets_message() -> None:
    book = book_of(2)
    take(book, "a", "main", 1)

    with pytest.raises(AdmissionError) as refusal:
        book.request("b", "main", GPU, 2)

    assert str(refusal.value) == (
        "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1"
    )


def test_an_unhealthy_device_is_not_given_out() -> None:
    request = book_of(3, unhealthy=2).request("a", "main", GPU, 1)

    assert request is not None
    assert request.available == {"gpu-2"}


def test_a_changed_amount_is_refused() -> None:
    book = book_of(4)
    take(book, "a", "main", 1)

    with pytest.raises(AdmissionError, match="changed request"):
        book.request("a", "main", GPU, 2)


def test_an_init_containers_ids_are_given_to_the_next_containers_once() -> None:
    book = book_of(10)
    book.begin("a")
    init = take(book, "a", "init", 1)
    book.offer_for_reuse("a", "init")
    main = take(book, "a", "main", 2)
    book.withdraw_from_reuse("a", "main")
    side = take(book, "a", "side", 1)

    assert init < main
    assert not side & main


def test_another_pod_gets_nothing_of_the_init_container() -> None:
    book = book_of(10)
    book.begin("a")
    init = take(book, "a", "init", 1)
    book.offer_for_reuse("a", "init")
    book.begin("b")

    request = book.request("b", "main", GPU, 1)

    assert request is not None
    assert not request.preset
    assert not request.available & init


def test_after_a_restart_allocations_stay_and_capacity_is_zero() -> None:
    before = book_of(2)
    take(before, "a", "main", 1, ["gpu-1"])
    after = DeviceBook()

    after.restore(before.allocations(), [GPU], now_s=0.0)

    assert after.counts() == {GPU: DeviceCounts(capacity=0, allocatable=0)}
    assert after.options(GPU) is None
    assert after.request("a", "main", GPU, 1) is None
    assert after.held_counts() == {GPU: 1}


def test_ids_are_written_down_by_numa_node() -> None:
    book = DeviceBook()
    book.register(GPU, PluginOptions())
    book.update(
        GPU,
        [
            Device(id="a", healthy=True, numa_nodes=(1,)),
            Device(id="b", healthy=True, numa_nodes=(0,)),
            Device(id="c", healthy=True),
        ],
    )

    take(book, "p", "main", 3)

    assert book.allocations()[0].ids_by_numa == {0: ("b", "c"), 1: ("a",)}


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(min_value=1, max_value=4), max_size=12),
    ended=st.sets(st.integers(min_value=0, max_value=11)),
)
def test_no_id_is_ever_held_twice(sizes: list[int], ended: set[int]) -> None:
    book = book_of(16)
    active: set[str] = set()
    for number, size in enumerate(sizes):
        if number in ended and active:
            active.pop()
            book.release_all_but(active)
        try:
            take(book, f"p{number}", "main", size)
        except AdmissionError:
            continue
        active.add(f"p{number}")

    held = [i for allocation in book.allocations() for i in allocation.ids]
    assert len(held) == len(set(held))
