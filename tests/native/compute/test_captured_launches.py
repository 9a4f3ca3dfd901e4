"""A launch into a stream that records a graph is free: the graph pays when it is launched."""

import struct

import pytest

from tests.native.compute.test_current_device import PAID_AT
from tests.native.driver_program import Program
from tests.native.machine import CARDS, Container
from tests.waiting import wait

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
    """Whether a round moves the time until which the card is paid for."""

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
