"""Captures of the stand-in driver: streams that join each other, and what breaks a recording."""

from tests.native.driver_program import lines_after
from tests.native.fakegpu.graphs.graph_program import CAPTURE
from tests.native.machine import Machine

lines = lines_after(CAPTURE)


def test_streams_that_are_joined_by_events_make_one_graph(machine: Machine) -> None:
    assert lines(
        machine,
        """
begin(stream)
put(target, 1, stream)
ok(record(fork, stream))
ok(wait(other, fork))
put(at(target, 1), 2, other)
put(at(target, 2), 3, stream)
mine, theirs, now, graph = c_uint64(), c_uint64(), c_int(), c_void_p()
ok(cuda.cuStreamGetCaptureInfo(stream, byref(now), byref(mine)))
before, many = POINTER(c_void_p)(), c_size_t()
ok(
    cuda.cuStreamGetCaptureInfo_v2(
        other, byref(now), byref(theirs), byref(graph), byref(before), byref(many)
    )
)
show(status(other), now.value, mine.value == theirs.value, many.value, number_at(target))
ok(record(join, other))
ok(wait(stream, join))
put(at(target, 3), 4, stream)
result, made = end(stream)
show(result, made.value == graph.value, status(stream), status(other))
show(
    count("cuGraphGetNodes", made, None),
    count("cuGraphGetEdges", made, None, None),
    count("cuGraphGetRootNodes", made, None),
)
run(instantiate(made))
show([number_at(at(target, i)) for i in range(4)])
""",
    ) == ["1 1 True 1 0", "0 True 0 0", "4 4 1", "[1, 2, 3, 4]"]


def test_a_stream_that_is_not_joined_again_ends_the_recording(machine: Machine) -> None:
    assert lines(
        machine,
        """
begin(stream)
ok(record(fork, stream))
ok(wait(other, fork))
put(target, 2, other)
show(end(other)[0], *end(stream))
show(status(stream), status(other), end(stream)[0])
put(target, 3, other)
ok(cuda.cuStreamSynchronize(other))
show(number_at(target))
begin(stream)
ok(record(fork, stream))
ok(wait(other, fork))
show(end(stream)[0])
""",
    ) == ["903 904 c_void_p(None)", "0 0 401", "3", "0"]


def test_what_a_recording_does_not_survive(machine: Machine) -> None:
    assert lines(
        machine,
        """
import threading

show(cuda.cuStreamBeginCapture_v2(None, 0), cuda.cuStreamBeginCapture_v2(stream, 9))
begin(stream)
show(cuda.cuStreamBeginCapture_v2(stream, 0))
show(cuda.cuStreamSynchronize(stream), status(stream), record(fork, stream), end(stream)[0])
begin(stream)
show(cuda.cuStreamQuery(stream), end(stream)[0])
ok(record(join, third))
begin(stream)
show(wait(stream, join), end(stream)[0])
begin(stream)
begin(other)
ok(record(fork, stream))
show(wait(other, fork), end(stream)[0], end(other)[0])
begin(stream)
ok(record(fork, stream))
show(cuda.cuEventQuery(fork), cuda.cuEventSynchronize(fork))
ok(end(stream)[0])
show(wait(other, fork), record(fork, other), cuda.cuEventQuery(fork))
begin(stream)
ok(record(fork, stream))
show(wait(None, fork), end(stream)[0])
begin(stream)
thread_result = []
thread = threading.Thread(target=lambda: thread_result.append(end(stream)[0]))
thread.start()
thread.join()
show(thread_result, end(stream)[0])
begin(stream, 2)
thread = threading.Thread(target=lambda: thread_result.append(end(stream)[0]))
thread.start()
thread.join()
show(thread_result)
gone = new_stream()
begin(stream)
ok(record(fork, stream))
ok(wait(gone, fork))
ok(cuda.cuStreamDestroy_v2(gone))
show(end(stream)[0])
gone = new_stream()
begin(gone)
ok(record(fork, gone))
ok(wait(other, fork))
ok(cuda.cuStreamDestroy_v2(gone))
show(status(other))
""",
    ) == [
        "900 1",
        "401",
        "900 2 901 901",
        "900 901",
        "905 901",
        "902 901 901",
        "907 907",
        "907 0 0",
        "906 901",
        "[908] 0",
        "[908, 0]",
        "901",
        "0",
    ]


def test_a_recording_continues_a_graph_and_its_dependencies_can_be_set(machine: Machine) -> None:
    assert lines(
        machine,
        """
graph = new_graph()
first = add_fill(graph, fill(target, 1))
apart = add_fill(graph, fill(at(target, 9), 1))
ok(cuda.cuStreamBeginCaptureToGraph(stream, graph, nodes(first), None, N(1), 0))
put(target, 2, stream)
show(cuda.cuStreamUpdateCaptureDependencies(other, nodes(apart), N(1), 0))
show(cuda.cuStreamUpdateCaptureDependencies(stream, nodes(apart), N(1), 0))
put(target, 3, stream)
ok(cuda.cuStreamUpdateCaptureDependencies_v2(stream, nodes(first), None, N(1), 1))
put(at(target, 1), 4, stream)
result, made = end(stream)
show(result, made.value == graph.value, count("cuGraphGetEdges", graph, None, None))
run(instantiate(graph))
show(number_at(target), number_at(at(target, 1)), number_at(at(target, 9)))
elsewhere = add_fill(new_graph(), fill(target, 1))
show(
    cuda.cuStreamBeginCaptureToGraph(stream, graph, nodes(elsewhere), None, N(1), 0),
    status(stream),
)
""",
    ) == ["401", "0", "0 True 4", "3 4 1", "1 0"]


def test_launches_copies_callbacks_values_and_events_become_nodes(machine: Machine) -> None:
    assert lines(
        machine,
        """
inner = new_graph()
add_fill(inner, fill(target, 5))
inner = instantiate(inner)
done = []
call = CALL(lambda _: done.append(host_number()))
outside = new_event()


def host_number():
    return cast(target.value, POINTER(c_uint))[0]


begin(stream)
ok(cuda.cuGraphLaunch(inner, stream))
ok(cuda.cuLaunchHostFunc(stream, call, None))
ok(cuda.cuStreamWriteValue32_v2(stream, at(target, 1), 6, 0))
ok(cuda.cuMemcpyDtoDAsync_v2(at(target, 2), at(target, 1), N(4), stream))


class Attribute(Structure):
    _fields_ = [("id", c_int), ("pad", c_int), ("value", c_int * 16)]


class Config(Structure):
    _fields_ = [
        ("dims", c_uint * 7),
        ("stream", c_void_p),
        ("attrs", c_void_p),
        ("count", c_uint),
    ]


priority = Attribute(8, 0, (c_int * 16)(-3))
config = Config((c_uint * 7)(1, 1, 1, 32, 1, 1, 0), stream, ctypes.addressof(priority), 1)
ok(cuda.cuLaunchKernelEx(byref(config), kernel(), None, None))
ok(cuda.cuEventRecordWithFlags(outside, stream, 1))
show(cuda.cuStreamAddCallback(stream, call, None, 0))
show(end(stream)[0])
begin(stream)
ok(cuda.cuGraphLaunch(inner, stream))
ok(cuda.cuLaunchHostFunc(stream, call, None))
ok(cuda.cuStreamWriteValue32_v2(stream, at(target, 1), 6, 0))
ok(cuda.cuMemcpyDtoDAsync_v2(at(target, 2), at(target, 1), N(4), stream))
ok(cuda.cuLaunchKernelEx(byref(config), kernel(), None, None))
ok(cuda.cuEventRecordWithFlags(outside, stream, 1))
result, graph = end(stream)
room = c_size_t(9)
found = (c_void_p * 9)()
kind = c_int()
kinds = []
ok(cuda.cuGraphGetNodes(graph, found, byref(room)))
for node in found[: room.value]:
    ok(cuda.cuGraphNodeGetType(c_void_p(node), byref(kind)))
    kinds.append(kind.value)
value = (c_int * 16)()
ok(cuda.cuGraphKernelNodeGetAttribute(c_void_p(found[4]), 8, value))
show(result, kinds, value[0], done)
run(instantiate(graph))
show(
    done,
    number_at(at(target, 2)),
    cuda.cuEventQuery(outside),
    cuda.cuEventRecordWithFlags(outside, stream, 1),
)
""",
    ) == ["900", "901", "0 [4, 3, 12, 1, 0, 7] -3 []", "[5] 6 0 1"]
