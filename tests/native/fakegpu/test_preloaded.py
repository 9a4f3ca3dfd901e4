"""libvgpu in front of the calls that the stand-in driver answers since it answers the runtimes'."""

from tests.native.driver_program import Program
from tests.native.fakegpu.graphs.graph_program import CAPTURE
from tests.native.fakegpu.object_program import OBJECTS
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
    put(b, 3, other)
    ok(record(join, other))
    ok(wait(stream, join))
    result, graph = end(stream)
    ok(result)
    return instantiate(graph), a, b


small, a, b = captured({8 * MIB})
before = free_mib()
run(small)
show(before - free_mib(), number_at(b))
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
    assert running.line() == "16 3"
    assert machine.used() == 16 * MIB + 4096
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
show(count("cuGraphGetNodes", graph, None), count("cuGraphGetEdges", graph, None, None))
made = instantiate(graph)
for _ in range(100):
    ok(cuda.cuGraphLaunch(made, stream))
show(cuda.cuStreamSynchronize(stream))
""",
        cores=50,
    )
    assert running.rest() == ["4 4", "0"]


def test_levels_and_imported_mipmaps_are_charged_once(
    machine: Machine, container: Container
) -> None:
    running = program(
        machine,
        container,
        OBJECTS
        + """
before = free_mib()
flat = mipmap(1, 2048, 1024, 0)
of = level(flat, 0)[1]
show(before - free_mib(), cuda.cuArrayDestroy(of), before - free_mib())


memory, made = c_void_p(), c_void_p()
ok(cuda.cuImportExternalMemory(byref(memory), byref(Memory(1, size=8 << 20))))
wanted = Mapped(0, Array(1024, 512, 0, FLOAT, 1, 0), 2)
ok(cuda.cuExternalMemoryGetMappedMipmappedArray(byref(made), memory, byref(wanted)))
show(before - free_mib())
ok(cuda.cuMipmappedArrayDestroy(made))
show(before - free_mib())
ok(cuda.cuDestroyExternalMemory(memory))
ok(cuda.cuMipmappedArrayDestroy(flat))
show(before - free_mib())
""",
    )
    assert running.rest() == ["8 400 8", "16", "16", "0"]
    assert machine.used() == 0


def test_variables_of_linked_code_are_in_the_slice(machine: Machine, container: Container) -> None:
    running = program(
        machine,
        container,
        f"""
import time

state, image, size, module = c_void_p(), c_void_p(), c_size_t(), c_void_p()
text = (
    b".version 7.0 .visible .global .b8 big[{16 * MIB}]; .visible .entry idle() {{ ret; }}"
)
ok(cuda.cuLinkCreate_v2(0, None, None, byref(state)))
ok(cuda.cuLinkAddData_v2(state, 1, text, c_size_t(len(text)), b"x", 0, None, None))
ok(cuda.cuLinkComplete(state, byref(image), byref(size)))
before = free_mib()
ok(cuda.cuModuleLoadData(byref(module), image))
ok(cuda.cuLinkDestroy(state))


def settled():  # what modules take is looked up after the call, at most ten times a second
    for _ in range(600):
        held = c_uint64()
        ok(cuda.cuMemAlloc_v2(byref(held), c_size_t(1)))
        ok(cuda.cuMemFree_v2(held))
        if before - free_mib() == wanted:
            break
        time.sleep(0.05)  # it has no event
    return before - free_mib()


wanted = 16
show(settled(), cuda.cuMemAlloc_v2(byref(block), c_size_t({56 * MIB})))
ok(cuda.cuModuleUnload(module))
wanted = 0
show(settled(), cuda.cuMemAlloc_v2(byref(block), c_size_t({56 * MIB})))
""",
    )
    assert running.rest() == ["16 2", "0 0"]
