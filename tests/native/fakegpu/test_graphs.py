"""Graphs and captures of the stand-in driver: memory of nodes, and what breaks a recording."""

from tests.native.driver_program import Program, lines_after
from tests.native.fakegpu.graph_program import CAPTURE
from tests.native.machine import MIB, Machine

lines = lines_after(CAPTURE)


def test_graphs_that_allocate_keep_the_rules_of_memory_nodes(machine: Machine) -> None:
    program = Program(
        machine,
        CAPTURE
        + f"""
graph, made = new_graph(), c_void_p()
taken, at = alloc_node(graph, {8 * MIB})
show(cuda.cuMemsetD32_v2(at, 1, N(1)))
runnable = instantiate(graph)
show(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
run(runnable)
ok(cuda.cuMemsetD32_v2(at, 6, N(4)))
show(number_at(at))
sys.stdin.readline()
show(cuda.cuGraphLaunch(runnable, stream))
ok(cuda.cuMemFree_v2(at))
run(runnable)
show(cuda.cuMemFree_v2(at), cuda.cuMemFree_v2(at))
ok(cuda.cuGraphExecDestroy(runnable))
ok(cuda.cuGraphExecDestroy(instantiate(graph)))
show(free_node(graph, at, taken), free_node(graph, at), free_node(graph, c_uint64(4096)))
ok(cuda.cuDeviceGraphMemTrim(0))
high = c_uint64()
ok(cuda.cuDeviceGetGraphMemAttribute(0, 3, byref(high)))
show(high.value)
""",
    )
    assert [program.line() for _ in range(3)] == ["1", "801", "6"]
    assert machine.used() == 8 * MIB
    program.go_on()
    assert program.rest() == ["1", "0 1", "0 1 1", str(8 * MIB)]
    assert machine.used() == 0


def test_a_graph_inside_a_graph_is_a_copy(machine: Machine) -> None:
    assert lines(
        machine,
        """
graph, inner, child, inside, kind = new_graph(), new_graph(), c_void_p(), c_void_p(), c_int()
first, alien = empty_node(inner), empty_node(new_graph())
empty_node(inner, first)
add = cuda.cuGraphAddChildGraphNode
ok(add(byref(child), graph, None, N(0), inner))
show(add(byref(child), graph, nodes(alien), N(1), inner))
show(add(byref(child), graph, None, N(0), graph))
ok(cuda.cuGraphChildGraphNodeGetGraph(child, byref(inside)))
empty_node(inner)
show(count(inside), count(inner), cuda.cuGraphDestroy(inside), cuda.cuGraphDestroy(inner))
ok(cuda.cuGraphNodeGetType(child, byref(kind)))
made = instantiate(graph)
show(kind.value, cuda.cuGraphDestroy(graph), cuda.cuGraphDestroy(graph))
run(made)
""",
    ) == ["1", "1", "2 3 1 0", "4 0 1"]


def test_launches_become_nodes_in_all_streams_that_join_a_recording(machine: Machine) -> None:
    assert lines(
        machine,
        """
function, inner = kernel(), instantiate(new_graph())


def launch(of):
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, of, None, None))


begin(stream)
launch(stream)
ok(record(fork, stream))
ok(wait(other, fork))
launch(other)
ok(cuda.cuGraphLaunch(inner, other))
ok(record(join, other))
ok(wait(stream, join))
show(status(stream), status(other), end(other)[0])
result, graph = end(stream)
show(result, count(graph), status(stream), status(other), end(stream)[0])
run(instantiate(graph))
begin(stream)
ok(cuda.cuStreamBeginCaptureToGraph(other, graph, None, None, N(0), 0))
launch(other)
result, same = end(other)
show(result, same.value == graph.value, count(graph), end(stream)[0])
""",
    ) == ["1 1 903", "0 3 0 0 401", "0 True 4 0"]


def test_what_a_recording_does_not_survive(machine: Machine) -> None:
    assert lines(
        machine,
        """
import threading

show(cuda.cuStreamBeginCapture_v2(None, 0), cuda.cuStreamBeginCapture_v2(stream, 9))
begin(stream)
show(cuda.cuStreamBeginCapture_v2(stream, 0))
show(cuda.cuStreamSynchronize(stream), status(stream), end(stream)[0])
begin(stream)
show(cuda.cuStreamQuery(stream), end(stream)[0])
begin(stream)
show(cuda.cuMemsetD32Async(alloc(4096), 1, N(1), stream), end(stream)[0])
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
        "900 2 901",
        "900 901",
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
