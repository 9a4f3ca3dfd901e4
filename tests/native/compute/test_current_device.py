"""Launches are charged to the right device and time: captured ones, and beside a busy card."""

import struct
from pathlib import Path

import pytest

from tests.native.driver_program import Program
from tests.native.machine import CARDS, Container
from tests.waiting import wait

PAID_AT = 1856 + 1960 + 1160 + 24
"""slots[1].util[0].spare[0]: until when the device's time is paid for; the next device is 48 on."""


def paid_flags(container: Container) -> list[bool]:
    content = container.region.read_bytes()
    return [struct.unpack_from("<q", content, PAID_AT + 48 * device)[0] > 0 for device in (0, 1)]


@pytest.mark.parametrize("how", ["set", "push", "pop", "create"])
def test_a_launch_after_a_change_of_context_is_charged_to_the_new_device(
    container: Container, how: str
) -> None:
    container.limits(
        "hami-limits 1\npolicy force\n"
        + "".join(f"device {card} memory_bytes 0 core_percent 50\n" for card in CARDS)
    )
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_on_both", how=how) == {"result": 0}
    assert paid_flags(container) == [True, True]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("limited", [(True, True), (True, False), (False, True)])
def test_a_launch_on_several_devices_is_charged_to_each(
    container: Container, first: int, limited: tuple[bool, bool]
) -> None:
    percents = (50 if one else 100 for one in limited)
    container.limits(
        "hami-limits 1\npolicy force\n"
        + "".join(
            f"device {card} memory_bytes 0 core_percent {percent}\n"
            for card, percent in zip(CARDS, percents, strict=True)
        )
    )
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_cooperatively", first=first) == {"result": 0}
    assert paid_flags(container) == list(limited)


@pytest.mark.parametrize("how", ["cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"])
def test_launches_as_before_cuda_4_are_charged_too(container: Container, how: str) -> None:
    container.limits(
        f"hami-limits 1\npolicy force\ndevice {CARDS[0]} memory_bytes 0 core_percent 50\n"
    )
    client = container.start(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_as_before_cuda_4", how=how, kernels=20) == {"result": 0}
    assert paid_flags(container) == [True, False]


RECORDS = """
# More GPU time than one lease pays for, of a kind whose price is known.
RECORDED = 5000
function, graph = kernel(), c_void_p()


def launch():
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None))


for _ in range(200):
    launch()
ok(cuda.cuStreamSynchronize(stream))
for line in sys.stdin:
    show("ready")
    sys.stdin.readline()
    BEGIN
    for _ in range(RECORDED):
        launch()
    ok(cuda.cuStreamEndCapture(stream, byref(graph)))
    launch()
    show("done")
"""


def running(container: Container, body: str) -> Program:
    env = container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    return Program(container.machine, body, env=env)


def is_paid(container: Container, program: Program) -> bool:
    """Return whether a round moves the time until which the card is paid for."""

    def paid_until() -> int:
        (until,) = struct.unpack_from("<q", container.region.read_bytes(), PAID_AT)
        return int(until)

    program.go_on()
    assert program.line() == "ready"
    before = paid_until()
    program.go_on()
    assert program.line() == "done"
    return paid_until() != before


@pytest.mark.parametrize(
    "begin",
    [
        "ok(cuda.cuStreamBeginCapture_v2(stream, 0))",
        "ok(cuda.cuStreamBeginCapture(stream))",
        "ok(cuda.cuStreamBeginCapture_v2(stream, 0)); cuda.cuStreamEndCapture(None, byref(graph))",
        "graph = c_void_p(); ok(cuda.cuGraphCreate(byref(graph), 0)); "
        "ok(cuda.cuStreamBeginCaptureToGraph(stream, graph, None, None, c_size_t(0), 0))",
    ],
    ids=["version 2", "version 1", "another stream does not end it", "into a graph"],
)
def test_recorded_launches_use_up_no_lease(container: Container, begin: str) -> None:
    """The launch after them needs no new one, unless by chance the old one ended just then."""
    container.limit(1 << 30, cores=50)
    with running(container, RECORDS.replace("BEGIN", begin)) as program:
        wait(lambda: not is_paid(container, program), "the lease to outlast what was recorded")
        assert program.rest() == []


def test_launches_are_paid_again_after_a_recording(container: Container) -> None:
    container.limit(1 << 30, cores=50)
    body = RECORDS.replace("BEGIN", "ok(cuda.cuStreamBeginCapture_v2(stream, 0))")
    many = body.replace(
        'launch()\n    show("done")', '[launch() for _ in range(RECORDED)]; show("done")'
    )
    with running(container, many) as program:
        assert is_paid(container, program)
        assert program.rest() == []


TWO_CARDS = """
import os, pathlib, threading

other = c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(byref(other), 1))
waiting = pathlib.Path(sys.argv[1] + ".waiting")


def launches(of, kinds, rounds):
    ok(cuda.cuCtxSetCurrent(of))
    functions = [kernel(b"kind%d" % kind) for kind in range(kinds)]
    for _ in range(rounds):
        for function in functions:
            ok(cuda.cuLaunchKernel(function, 216, 1, 1, 1024, 1, 1, 0, None, None, None))


def graph_with_memory(ordinal):
    params = (ctypes.c_ubyte * 136)()
    # CUDA_MEM_ALLOC_NODE_PARAMS: pinned memory on a device, its number, and the size at 104
    ctypes.memmove(params, (ctypes.c_int * 4)(1, 0, 1, ordinal), 16)
    c_uint64.from_buffer(params, 104).value = 1 << 20
    graph, node, made = c_void_p(), c_void_p(), c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), params))
    freed = c_uint64.from_buffer(params, 112)
    ok(cuda.cuGraphAddMemFreeNode(byref(c_void_p()), graph, byref(node), c_size_t(1), freed))
    ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
    return made


def graph_launches(of, ordinal, rounds):
    ok(cuda.cuCtxSetCurrent(of))
    made = graph_with_memory(ordinal)
    for _ in range(rounds):
        ok(cuda.cuGraphLaunch(made, None))


def apart(held_up, going_on):
    threading.Thread(target=held_up, daemon=True).start()
    while not waiting.exists():
        threading.Event().wait(0.01)
    going_on()
    show("the other card goes on")
    os._exit(0)
"""


def assert_goes_on(container: Container, call: str, body: str) -> None:
    until = container.folder / "until"
    container.machine.settings["gates"] = [{"call": call, "card": 0, "until": str(until)}]
    container.machine.write()
    lines = (f"device {card} memory_bytes 1073741824 core_percent 50\n" for card in CARDS)
    container.limits("hami-limits 1\npolicy force\n" + "".join(lines))
    program = Program(container.machine, TWO_CARDS + body, str(until), env=container.env())
    assert program.rest() == ["the other card goes on"]
    assert Path(f"{until}.waiting").exists()


@pytest.mark.parametrize("call", ["nvmlDeviceGetProcessUtilization", "cuEventRecord"])
def test_launches_go_on(container: Container, call: str) -> None:
    """NVML of a card is slow; its queue is full, and an event waits for room in it."""
    assert_goes_on(
        container, call, "apart(lambda: launches(context, 40, 9), lambda: launches(other, 40, 9))"
    )


def test_graphs_with_memory_go_on(container: Container) -> None:
    assert_goes_on(
        container,
        "cuGraphLaunch",
        "apart(lambda: graph_launches(context, 0, 1), lambda: graph_launches(other, 1, 9))",
    )


def test_threads_that_launch_graphs_with_memory_leave_nothing_charged(container: Container) -> None:
    """Two threads launch concurrently on one card, within a limit that fits both."""
    container.limit(6 << 20)
    body = (
        TWO_CARDS
        + """
threads = [threading.Thread(target=graph_launches, args=(context, 0, 300)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ok(cuda.cuCtxSynchronize())
free, total = c_size_t(), c_size_t()
ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
held = total.value - free.value
ok(cuda.cuDeviceGraphMemTrim(0))
ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
show(0 < held <= 2 << 20, total.value - free.value)
"""
    )
    env = container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    body = body.replace("ok(cuda.cuDevicePrimaryCtxRetain(byref(other), 1))\n", "")
    assert Program(container.machine, body, "nothing", env=env).rest() == ["True 0"]
