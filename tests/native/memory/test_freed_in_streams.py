"""Memory freed in a stream stays charged until the stream has reached that point."""

import pytest

from tests.native.machine import Container, Machine
from tests.native.memory.stream_program import LIMIT, program


def test_bytes_whose_free_waits_are_not_granted_again(
    container: Container, machine: Machine
) -> None:
    # By turns of allocation and free on blocked streams one container held any number of slices.
    lines = program(
        container,
        """
taken = []
for _ in range(5):
    at = new_stream()
    result, made = take(LIMIT, at)
    taken.append(result)
    if result == 0:
        block(at)
        ok(cuda.cuMemFreeAsync(made, at))
show(*taken, free_mib())
let_go()
ok(cuda.cuCtxSynchronize())
show(free_mib(), take(LIMIT, other)[0])
""",
    ).rest()
    assert lines == ["0 2 2 2 2 0", "100 0"]
    assert machine.peak() == LIMIT


def test_the_same_stream_may_have_them_again_at_once(
    container: Container, machine: Machine
) -> None:
    lines = program(
        container,
        """
made = held(LIMIT)
block()
for _ in range(50):
    ok(cuda.cuMemFreeAsync(made, stream))
    made = held(LIMIT)
ok(cuda.cuMemFreeAsync(made, stream))
parts = [held(LIMIT // 4) for _ in range(4)]
show(take(1)[0], take(1, other)[0], free_mib())
let_go()
for part in parts:
    ok(cuda.cuMemFreeAsync(part, stream))
ok(cuda.cuStreamSynchronize(stream))
show(free_mib())
""",
    ).rest()
    assert lines == ["2 2 0", "100"]
    assert machine.peak() == LIMIT


def test_an_allocation_that_is_refused_lifts_no_charge(container: Container) -> None:
    lines = program(
        container,
        """
made = held(LIMIT)
block()
ok(cuda.cuMemFreeAsync(made, stream))
show(take(LIMIT + 1)[0], take(1 << 45)[0], take(1, other)[0], free_mib())
show(take(LIMIT)[0])
let_go()
""",
    ).rest()
    assert lines == ["2 2 2 0", "0"]


def test_an_allocation_waits_for_a_free_that_comes(container: Container) -> None:
    lines = program(
        container,
        """
import threading

for _ in range(10):
    gate[0] = 0
    made = held(LIMIT)
    block()
    ok(cuda.cuMemFreeAsync(made, stream))
    thread = threading.Thread(target=let_go)
    thread.start()
    result, made = take(LIMIT, other)
    thread.join()
    ok(cuda.cuMemFreeAsync(made, other))
    show(result)
""",
    ).rest()
    assert lines == ["0"] * 10


@pytest.mark.parametrize(
    "ways",
    [
        "cuda.cuStreamSynchronize(stream)",
        "cuda.cuCtxSynchronize()",
        "cuda.cuEventSynchronize(event)",
    ],
)
def test_waiting_for_the_device_gives_them_back_to_the_container(
    container: Container, ways: str
) -> None:
    # It makes no further call: the other process can take the freed memory.
    body = f"""
made, event = held(LIMIT), c_void_p()
block()
ok(cuda.cuMemFreeAsync(made, stream))
ok(cuda.cuEventCreate(byref(event), 0))
ok(cuda.cuEventRecord(event, stream))
show("freed")
wait()
let_go()
ok({ways})
show("done")
wait()
"""
    first = program(container, body)
    assert first.line() == "freed"
    second = program(container, "show(take(1)[0])\nwait()\nshow(take(LIMIT)[0])\n")
    assert second.line() == "2"
    first.go_on()
    assert first.line() == "done"
    second.go_on()
    assert second.rest() == ["0"]
    first.go_on()
    assert first.rest() == []


def test_blocks_of_no_pool_are_charged_as_long(container: Container, machine: Machine) -> None:
    lines = program(
        container,
        """
block()
ok(cuda.cuMemFreeAsync(alloc(LIMIT), stream))
made = c_uint64()
show(cuda.cuMemAlloc_v2(byref(made), c_size_t(LIMIT)), take(LIMIT)[0], free_mib())
let_go()
ok(cuda.cuStreamSynchronize(stream))
show(free_mib())
""",
    ).rest()
    assert lines == ["2 2 0", "100"]
    assert machine.peak() == LIMIT


def test_each_thread_has_a_default_stream_of_its_own(
    container: Container, machine: Machine
) -> None:
    lines = program(
        container,
        """
import threading


def turn(results):
    ok(cuda.cuCtxSetCurrent(context))
    made = c_uint64()
    result = cuda.cuMemAllocAsync_ptsz(byref(made), c_size_t(LIMIT), None)
    results.append(result)
    if result == 0:
        ok(cuda.cuStreamWaitValue32_v2(c_void_p(2), c_uint64(flag.value), c_uint32(1), 0))
        ok(cuda.cuMemFreeAsync_ptsz(made, None))
        results.append(cuda.cuMemAllocAsync_ptsz(byref(made), c_size_t(LIMIT), None))
        ok(cuda.cuMemFreeAsync_ptsz(made, None))


results = []
for _ in range(3):
    thread = threading.Thread(target=turn, args=(results,))
    thread.start()
    thread.join()
show(*results, free_mib())
let_go()
ok(cuda.cuCtxSynchronize())
show(free_mib())
""",
    ).rest()
    assert lines == ["0 0 2 2 0", "100"]
    assert machine.peak() == LIMIT


def test_they_end_with_their_context(container: Container) -> None:
    lines = program(
        container,
        """
own, popped = c_void_p(), c_void_p()
ok(cuda.cuCtxCreate_v2(byref(own), 0, 0))
at = new_stream()
made = held(LIMIT, at)
block(at)
ok(cuda.cuCtxPopCurrent_v2(byref(popped)))
# The stream's context is not the current one.
ok(cuda.cuMemFreeAsync(made, at))
show(take(1)[0])
let_go()
ok(cuda.cuCtxDestroy_v2(own))
show(free_mib(), take(LIMIT)[0])
""",
    ).rest()
    assert lines == ["2", "100 0"]


def test_a_recording_goes_on_while_they_are_looked_at(container: Container) -> None:
    # Asking an event from a thread that records would end the recording, but for its mode.
    lines = program(
        container,
        """
made = held(LIMIT)
block()
ok(cuda.cuMemFreeAsync(made, stream))
graph = c_void_p()
ok(cuda.cuStreamBeginCapture_v2(other, 0))
first = cuda.cuMemFreeAsync(c_uint64(0), stream)
result = take(1)[0]
free = free_mib()
ended = cuda.cuStreamEndCapture(other, byref(graph))
show(result, free, ended)
let_go()
""",
    ).rest()
    assert lines == ["0 0 0"]


def test_a_forked_child_is_charged_with_nothing(container: Container) -> None:
    lines = program(
        container,
        """
import os

made = held(LIMIT // 2)
block()
ok(cuda.cuMemFreeAsync(made, stream))
child = os.fork()
if child == 0:
    # What the parent is about to free is not the child's to have again.
    os._exit(take(LIMIT // 2 + 1)[0] * 10 + take(LIMIT // 2)[0])
show(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
let_go()
""",
    ).rest()
    assert lines == ["20"]
