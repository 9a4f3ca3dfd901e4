"""libvgpu in front of streams that record graphs."""

from tests.native.driver_program import Program
from tests.native.fakegpu.graph_program import CAPTURE
from tests.native.machine import MIB, Container, Machine

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
    assert machine.used() == 16 * MIB
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
