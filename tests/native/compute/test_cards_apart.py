"""A call that one card's driver keeps waiting holds up no launch on another card.

The stand-in driver keeps it waiting until a file is there; the other card's launches have to be
made before that.
"""

from pathlib import Path

import pytest

from tests.native.driver_program import Program
from tests.native.machine import CARDS, Container

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
    """Two of one card, whose launches are under way at once, within a limit of both."""
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
