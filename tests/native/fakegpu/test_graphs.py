"""Graphs, captures and green contexts of the stand-in driver, without libvgpu and with it."""

from tests.native.driver_program import Program, lines_after
from tests.native.fakegpu.green_program import GREEN
from tests.native.machine import MIB, Container, Machine

CAPTURE = """
from ctypes import Structure, c_int

N = c_size_t


class Alloc(Structure):
    _fields_ = [
        ("pool", c_int * 22),
        ("access", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    ]


def new_graph():
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


def nodes(*of):
    return (c_void_p * len(of))(*[n.value for n in of])


def empty_node(graph, *after):
    node = c_void_p()
    ok(cuda.cuGraphAddEmptyNode(byref(node), graph, nodes(*after), N(len(after))))
    return node


def alloc_node(graph, size):
    wanted, node = Alloc(size=size), c_void_p()
    wanted.pool[0] = wanted.pool[2] = 1
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, N(0), byref(wanted)))
    return node, c_uint64(wanted.pointer)


def free_node(graph, at, *after):
    node = c_void_p()
    return cuda.cuGraphAddMemFreeNode(byref(node), graph, nodes(*after), N(len(after)), at)


def count(graph):
    n = c_size_t()
    ok(cuda.cuGraphGetNodes(graph, None, byref(n)))
    return n.value


def instantiate(graph):
    made = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
    return made


def run(runnable):
    ok(cuda.cuGraphLaunch(runnable, stream))
    ok(cuda.cuStreamSynchronize(stream))


def new_stream():
    made = c_void_p()
    ok(cuda.cuStreamCreate(byref(made), 1))
    return made


def new_event():
    made = c_void_p()
    ok(cuda.cuEventCreate(byref(made), 0))
    return made


def begin(of, mode=0):
    ok(cuda.cuStreamBeginCapture_v2(of, mode))


def end(of):
    graph = c_void_p(7)
    return cuda.cuStreamEndCapture(of, byref(graph)), graph


def status(of):
    now = c_int()
    ok(cuda.cuStreamIsCapturing(of, byref(now)))
    return now.value


def record(event, of):
    return cuda.cuEventRecord(event, of)


def wait(of, event, flags=0):
    return cuda.cuStreamWaitEvent(of, event, flags)


other, third, fork, join = new_stream(), new_stream(), new_event(), new_event()
"""


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
    assert machine.used_bytes() == 8 * MIB
    program.go_on()
    assert program.rest() == ["1", "0 1", "0 1 1", str(8 * MIB)]
    assert machine.used_bytes() == 0


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


FREE = """
def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20
"""


def program(machine: Machine, container: Container, body: str, cores: int = 0) -> Program:
    container.limit(64 * MIB, cores)
    return Program(machine, FREE + body, env=container.env())


def test_what_streams_that_were_joined_allocate_is_charged_when_their_graph_runs(
    machine: Machine, container: Container
) -> None:
    running = program(
        machine,
        container,
        CAPTURE
        + f"""
def captured(size):
    a, b = c_uint64(), c_uint64()
    begin(stream)
    ok(record(fork, stream))
    ok(wait(other, fork))
    ok(cuda.cuMemAllocAsync(byref(a), N(size), stream))
    ok(cuda.cuMemAllocAsync(byref(b), N(size), other))
    ok(record(join, other))
    ok(wait(stream, join))
    result, graph = end(stream)
    ok(result)
    return instantiate(graph), a, b


small, a, b = captured({8 * MIB})
before = free_mib()
run(small)
show(before - free_mib())
sys.stdin.readline()
large = captured({30 * MIB})[0]
show(cuda.cuGraphLaunch(large, stream))
ok(cuda.cuMemFree_v2(a))
ok(cuda.cuMemFree_v2(b))
ok(cuda.cuGraphExecDestroy(small))
ok(cuda.cuDeviceGraphMemTrim(0))
show(before - free_mib())
""",
    )
    assert running.line() == "16"
    assert machine.used_bytes() == 16 * MIB
    running.go_on()
    assert running.rest() == ["2", "0"]


def test_a_recording_under_core_limits_has_the_nodes_of_the_program_alone(
    machine: Machine, container: Container
) -> None:
    running = program(
        machine,
        container,
        CAPTURE
        + """
function = kernel()


def launch(of):
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1024, 1, 1, 0, of, None, None))


for _ in range(300):
    launch(stream)
begin(stream)
launch(stream)
ok(record(fork, stream))
ok(wait(other, fork))
launch(other)
launch(stream)
ok(record(join, other))
ok(wait(stream, join))
launch(stream)
result, graph = end(stream)
ok(result)
show(count(graph))
made = instantiate(graph)
for _ in range(100):
    ok(cuda.cuGraphLaunch(made, stream))
show(cuda.cuStreamSynchronize(stream))
""",
        cores=50,
    )
    assert running.rest() == ["4", "0"]


def test_multiprocessors_are_split_into_groups_of_what_the_card_allows(machine: Machine) -> None:
    program = Program(
        machine,
        GREEN
        + """
show(whole.count, split(None, 0, 16), split(None, 0, 17), split(None, 0, 0), split(None, 0, 200))
groups, left = (Resource * 9)(), Resource()
show(split(groups, 4, 20, byref(left)), [g.count for g in groups[:5]], left.count)
show(split(groups, 9, 54, byref(left)), left.type, cuda.cuDeviceGetDevResource(0, byref(left), 9))
forged = Resource(type=1, count=8)
show(split(None, 0, 4, of=forged)[0], described(forged)[0], described(whole, whole)[0])
show(described(groups[0], groups[1])[0])
""",
    )
    assert program.rest() == [
        "108 (0, 6) (0, 6) (0, 27) (915, 0)",
        "(0, 4) [20, 20, 20, 20, 0] 28",
        "(0, 2) 0 914",
        "915 915 915",
        "0",
    ]


def test_kernels_of_a_green_context_take_as_long_as_its_multiprocessors_let_them(
    machine: Machine,
) -> None:
    program = Program(
        machine,
        GREEN
        + """
quarter = (Resource * 4)()
show(split(quarter, 4, 26)[0], quarter[0].count)
result, description = described(quarter[0])
green, made, own_stream = c_void_p(), c_void_p(), c_void_p()
forged = ctypes.create_string_buffer(64)
create = cuda.cuGreenCtxCreate
show(create(byref(green), description, 1, 1), create(byref(green), forged, 0, 1))
ok(cuda.cuGreenCtxCreate(byref(green), description, 0, 1))
ok(cuda.cuCtxFromGreenCtx(byref(made), green))


def length_of(function, of):
    start, end, took = c_void_p(), c_void_p(), c_float()
    ok(cuda.cuEventCreate(byref(start), 0))
    ok(cuda.cuEventCreate(byref(end), 0))
    ok(cuda.cuEventRecord(start, of))
    ok(cuda.cuLaunchKernel(function, 21600 * 40, 1, 1, 1024, 1, 1, 0, of, None, None))
    ok(cuda.cuEventRecord(end, of))
    ok(cuda.cuEventSynchronize(end))
    ok(cuda.cuEventElapsedTime(byref(took), start, end))
    return took.value


all_of_it = length_of(kernel(), stream)
ok(cuda.cuCtxSetCurrent(made))
ok(cuda.cuStreamCreate(byref(own_stream), 1))
part = length_of(kernel(), own_stream)
# 200 ms and 830 ms of the card; a busy machine adds to both, and takes nothing away.
show(part > 2 * all_of_it, part > 800)
""",
    )
    assert program.rest() == ["0 26", "101 1", "True True"]


def test_memory_outlives_a_green_context_that_stays_current(machine: Machine) -> None:
    program = Program(
        machine,
        GREEN
        + """
group = (Resource * 1)()
split(group, 1, 26)
green, made, now = c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuGreenCtxCreate(byref(green), described(group[0])[1], 0, 1))
ok(cuda.cuCtxFromGreenCtx(byref(made), green))
ok(cuda.cuCtxPushCurrent_v2(made))
blocks = [alloc(8 << 20), alloc(8 << 20)]
ok(cuda.cuGreenCtxDestroy(green))
ok(cuda.cuCtxGetCurrent(byref(now)))
show(now.value == made.value, cuda.cuMemGetInfo_v2(None, None), cuda.cuCtxPushCurrent_v2(made))
show(cuda.cuGreenCtxDestroy(green), cuda.cuMemFree_v2(blocks[0]))
ok(cuda.cuCtxPopCurrent_v2(byref(now)))
show(now.value == made.value, cuda.cuMemFree_v2(blocks[0]))
sys.stdin.readline()
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
show("gone")
sys.stdin.readline()
""",
    )
    assert [program.line() for _ in range(3)] == ["True 709 201", "201 709", "True 0"]
    assert machine.used_bytes() == 8 * MIB
    program.go_on()
    assert program.line() == "gone"
    assert machine.used_bytes() == 0
    program.go_on()
    assert program.rest() == []
