"""What graphs of the stand-in driver do when they run."""

import pytest

from tests.native.driver_program import lines_after
from tests.native.fakegpu.graphs.graph_program import GRAPHS
from tests.native.machine import Machine

lines = lines_after(GRAPHS)


def test_a_user_object_ends_when_no_graph_and_no_launch_needs_it(machine: Machine) -> None:
    assert lines(
        machine,
        """
import threading

ended = threading.Event()
call = CALL(lambda _: ended.set())
graph, item = new_graph(), c_void_p()
show(
    cuda.cuUserObjectCreate(byref(item), None, call, 1, 0),
    cuda.cuUserObjectCreate(byref(item), None, call, 2, 1),
)
show(cuda.cuUserObjectRelease(item, 3), cuda.cuUserObjectRelease(item, 1))
show(
    cuda.cuGraphRetainUserObject(graph, item, 2, 1),
    cuda.cuGraphRetainUserObject(graph, item, 1, 1),
    cuda.cuGraphReleaseUserObject(graph, item, 2),
)
node = c_void_p()
what = Kernel(func=kernel(), dims=(c_uint * 7)(21600 * 60, 1, 1, 1024, 1, 1, 0))
ok(cuda.cuGraphAddKernelNode_v2(byref(node), graph, None, N(0), byref(what)))
runnable = instantiate(graph)
ok(cuda.cuGraphDestroy(graph))
show(ended.is_set())
ok(cuda.cuGraphLaunch(runnable, stream))
ok(cuda.cuGraphExecDestroy(runnable))
early = ended.is_set()
show(early, cuda.cuStreamQuery(stream))
show(ended.wait(60), cuda.cuStreamQuery(stream))
""",
    ) == ["1 0", "1 0", "1 0 1", "False", "False 600", "True 0"]


def test_events_and_values_in_memory_are_nodes(machine: Machine) -> None:
    assert lines(
        machine,
        """
graph, event, other, node = new_graph(), c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuEventCreate(byref(event), 0))
ok(cuda.cuEventCreate(byref(other), 0))
flag = alloc(4096)
ok(cuda.cuMemsetD32_v2(flag, 0, N(2)))


class Value(Structure):
    _fields_ = [
        ("operation", c_int),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
        ("pad", c_uint64),
    ]


class Batch(Structure):
    _fields_ = [
        ("ctx", c_void_p),
        ("count", c_uint),
        ("ops", POINTER(Value)),
        ("flags", c_uint),
    ]


wait, write = Value(1, flag.value, 7, 0), Value(2, flag.value + 4, 9, 0)
batch = Batch(context, 2, (Value * 2)(wait, write), 0)
values = c_void_p()
ok(cuda.cuGraphAddBatchMemOpNode(byref(values), graph, None, N(0), byref(batch)))
ok(cuda.cuGraphAddEventRecordNode(byref(node), graph, nodes(values), N(1), event))
show(cuda.cuGraphAddEventWaitNode(byref(c_void_p()), graph, None, N(0), None))
runnable = instantiate(graph)
ok(cuda.cuGraphExecEventRecordNodeSetEvent(runnable, node, other))
read = c_void_p()
ok(cuda.cuGraphEventRecordNodeGetEvent(node, byref(read)))
show(read.value == event.value)
ok(cuda.cuGraphLaunch(runnable, stream))
show(cuda.cuEventQuery(event), cuda.cuEventQuery(other), cuda.cuStreamQuery(stream))
cast(flag.value, POINTER(c_uint))[0] = 7
ok(cuda.cuEventSynchronize(other))
show(cast(flag.value, POINTER(c_uint))[1], cuda.cuEventQuery(other))
""",
    ) == ["1", "True", "0 600 600", "9 0"]


@pytest.mark.parametrize("length", [20_000])
def test_a_long_chain_that_was_added_backwards_runs(machine: Machine, length: int) -> None:
    assert lines(
        machine,
        f"""
graph, before = new_graph(), None
for _ in range({length}):
    node = c_void_p()
    ok(cuda.cuGraphAddEmptyNode(byref(node), graph, None, N(0)))
    if before:
        ok(cuda.cuGraphAddDependencies(graph, nodes(node), nodes(before), N(1)))
    before = node
run(instantiate(graph))
show(count("cuGraphGetEdges", graph, None, None))
""",
    ) == [str(length - 1)]
