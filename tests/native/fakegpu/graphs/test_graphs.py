"""Graphs of the stand-in driver: edited, copied, updated, and run in the order of their edges."""

from tests.native.driver_program import Program, lines_after
from tests.native.fakegpu.graphs.graph_program import GRAPHS
from tests.native.machine import MIB, Machine

lines = lines_after(GRAPHS)


def test_nodes_run_after_what_they_depend_on_in_whatever_order_they_were_added(
    machine: Machine,
) -> None:
    assert lines(
        machine,
        """
target, graph = alloc(4096), new_graph()
late, early = add_fill(graph, fill(target, 1)), add_fill(graph, fill(target, 2))
ok(cuda.cuGraphAddDependencies(graph, nodes(early), nodes(late), N(1)))
again = cuda.cuGraphAddDependencies(graph, nodes(early), nodes(late), N(1))
itself = cuda.cuGraphAddDependencies(graph, nodes(early), nodes(early), N(1))
show(
    again,
    itself,
    count("cuGraphGetEdges", graph, None, None),
    count("cuGraphGetRootNodes", graph, None),
)
runnable = instantiate(graph)
root, room = (c_void_p * 3)(), c_size_t(3)
ok(cuda.cuGraphGetRootNodes(graph, root, byref(room)))
show(root[0] == early.value, root[1], room.value)
ok(cuda.cuGraphDestroy(graph))
run(runnable)
show(number_at(target), cuda.cuGraphDestroy(graph))
""",
    ) == ["1 1 1 1", "True None 1", "1 1"]


def test_a_circle_is_not_instantiated(machine: Machine) -> None:
    assert lines(
        machine,
        """
target, graph, made = alloc(4096), new_graph(), c_void_p()
one = add_fill(graph, fill(target, 1))
two = add_fill(graph, fill(target, 2), one)
ok(cuda.cuGraphAddDependencies(graph, nodes(two), nodes(one), N(1)))
params = (c_uint64 * 4)()
show(
    cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)),
    cuda.cuGraphInstantiateWithParams(byref(made), graph, params),
    params[3] & 0xFFFFFFFF,
    params[2] in (one.value, two.value),
)
ok(cuda.cuGraphRemoveDependencies(graph, nodes(two), nodes(one), N(1)))
show(
    cuda.cuGraphRemoveDependencies(graph, nodes(two), nodes(one), N(1)),
    cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)),
)
""",
    ) == ["1 1 2 True", "1 0"]


def test_edges_that_leave_a_kernel_early_are_not_lost_silently(machine: Machine) -> None:
    assert lines(
        machine,
        """
graph, one, two = new_graph(), c_void_p(), c_void_p()
what = Kernel(func=kernel(), dims=(c_uint * 7)(1, 1, 1, 32, 1, 1, 0))
ok(cuda.cuGraphAddKernelNode_v2(byref(one), graph, None, N(0), byref(what)))
ok(cuda.cuGraphAddKernelNode_v2(byref(two), graph, None, N(0), byref(what)))
early, wrong = (ctypes.c_ubyte * 8)(1, 0, 1), (ctypes.c_ubyte * 8)(0, 0, 9)
call = cuda.cuGraphAddDependencies_v2
show(
    call(graph, nodes(one), nodes(two), wrong, N(1)),
    call(graph, nodes(one), nodes(two), early, N(1)),
)
empty = c_void_p()
ok(cuda.cuGraphAddEmptyNode(byref(empty), graph, None, N(0)))
show(call(graph, nodes(one), nodes(empty), early, N(1)))
fro, to, room, data = (
    (c_void_p * 1)(),
    (c_void_p * 1)(),
    c_size_t(1),
    (ctypes.c_ubyte * 8)(),
)
show(
    cuda.cuGraphGetEdges(graph, fro, to, byref(room)),
    cuda.cuGraphGetEdges_v2(graph, fro, to, data, byref(room)),
    list(data[:3]),
)
show(
    count("cuGraphNodeGetDependencies", two, None),
    count("cuGraphNodeGetDependentNodes", one, None),
)
""",
    ) == ["1 0", "1", "402 0 [1, 0, 1]", "1 1"]


def test_a_copy_of_a_graph_changes_apart_from_it(machine: Machine) -> None:
    assert lines(
        machine,
        """
target, graph, copy, mine, type = alloc(4096), new_graph(), c_void_p(), c_void_p(), c_int()
node = add_fill(graph, fill(target, 1))
child = c_void_p()
inner = new_graph()
inside = add_fill(inner, fill(c_uint64(target.value + 4), 5))
ok(cuda.cuGraphAddChildGraphNode(byref(child), graph, None, N(0), inner))
embedded = c_void_p()
ok(cuda.cuGraphChildGraphNodeGetGraph(child, byref(embedded)))
show(
    embedded.value != inner.value, cuda.cuGraphDestroy(embedded), cuda.cuGraphDestroy(inner)
)
ok(cuda.cuGraphClone(byref(copy), graph))
ok(cuda.cuGraphNodeFindInClone(byref(mine), node, copy))
show(cuda.cuGraphNodeFindInClone(byref(c_void_p()), mine, graph))
changed = fill(target, 7)
ok(cuda.cuGraphMemsetNodeSetParams(mine, byref(changed)))
read = Fill()
ok(cuda.cuGraphMemsetNodeGetParams(node, byref(read)))
run(instantiate(copy))
show(read.value, number_at(target), number_at(c_uint64(target.value + 4)))
ok(cuda.cuGraphDestroyNode(mine))
show(count("cuGraphGetNodes", copy, None))
show(cuda.cuGraphDestroyNode(child), count("cuGraphGetNodes", graph, None))
""",
    ) == ["True 1 0", "1", "1 7 5", "1", "0 1"]


def test_an_executable_graph_takes_over_what_has_the_same_shape(machine: Machine) -> None:
    assert lines(
        machine,
        """
target, info = alloc(4096), Info()


def build(value, more=False, other=False):
    graph = new_graph()
    one = add_fill(graph, fill(target, value))
    if other:
        ok(cuda.cuGraphAddEmptyNode(byref(c_void_p()), graph, nodes(one), N(1)))
    else:
        add_fill(graph, fill(c_uint64(target.value + 4), value), one)
    if more:
        add_fill(graph, fill(target, 1), one)
    return graph, one


graph, one = build(1)
runnable = instantiate(graph)
update = lambda of: cuda.cuGraphExecUpdate_v2(runnable, of, byref(info))
show(update(build(2)[0]), info.result)
run(runnable)
show(number_at(target))
show(
    update(build(3, more=True)[0]),
    info.result,
    update(build(3, other=True)[0]),
    info.result,
)
apart = new_graph()
add_fill(apart, fill(target, 3))
add_fill(apart, fill(target, 3))
show(update(apart), info.result)
run(runnable)
show(number_at(target))
changed = fill(target, 9)
show(cuda.cuGraphExecMemsetNodeSetParams(runnable, one, byref(changed), context))
wide = Fill(target.value, 64, 1, 4, 2, 2)
show(cuda.cuGraphExecMemsetNodeSetParams(runnable, one, byref(wide), context))
run(runnable)
show(number_at(target))
on = c_uint()
ok(cuda.cuMemsetD32_v2(target, 0, N(1)))
ok(cuda.cuGraphNodeSetEnabled(runnable, one, 0))
ok(cuda.cuGraphNodeGetEnabled(runnable, one, byref(on)))
run(runnable)
show(on.value, number_at(target), number_at(c_uint64(target.value + 4)))
""",
    ) == ["0 0", "2", "910 2 910 3", "910 2", "2", "0", "1", "9", "0 0 2"]


def test_arguments_are_kept_by_value_and_parameters_can_be_replaced(machine: Machine) -> None:
    assert lines(
        machine,
        """
graph, node, read = new_graph(), c_void_p(), Kernel()
function = kernel(b"two", b".param .u32 n, .param .align 8 .b8 s[16]")
n, block = c_uint(7), (c_uint64 * 2)(3, 4)
arguments = (c_void_p * 2)(ctypes.addressof(n), ctypes.addressof(block))
what = Kernel(func=function, dims=(c_uint * 7)(1, 1, 1, 32, 1, 1, 0), params=arguments)
ok(cuda.cuGraphAddKernelNode_v2(byref(node), graph, None, N(0), byref(what)))
n.value, block[1] = 8, 5


def values():
    ok(cuda.cuGraphKernelNodeGetParams_v2(node, byref(read)))
    return cast(read.params[0], POINTER(c_uint))[0], cast(
        read.params[1], POINTER(c_uint64)
    )[1]


show(values())
ok(cuda.cuGraphKernelNodeSetParams_v2(node, byref(what)))
show(values())
runnable = instantiate(graph)
show(cuda.cuGraphExecKernelNodeSetParams_v2(runnable, node, byref(what)))
what.params = None
show(cuda.cuGraphKernelNodeSetParams_v2(node, byref(what)))
packed, size = (c_uint * 6)(1), c_size_t(24)
extra = (c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
what.extra = ctypes.addressof(extra)
show(cuda.cuGraphKernelNodeSetParams_v2(node, byref(what)))
run(runnable)
seen = []
call, other = CALL(lambda _: seen.append(1)), CALL(lambda _: seen.append(2))
host = Host(cast(call, c_void_p), None)
at = c_void_p()
graph = new_graph()
ok(cuda.cuGraphAddHostNode(byref(at), graph, None, N(0), byref(host)))
runnable = instantiate(graph)
run(runnable)
host.fn = cast(other, c_void_p)
ok(cuda.cuGraphExecHostNodeSetParams(runnable, at, byref(host)))
run(runnable)
show(seen)
host.fn = None
show(cuda.cuGraphHostNodeSetParams(at, byref(host)))
""",
    ) == ["(7, 4)", "(8, 5)", "0", "1", "0", "[1, 2]", "1"]


def test_graphs_that_allocate_keep_the_rules_of_memory_nodes(machine: Machine) -> None:
    program = Program(
        machine,
        GRAPHS
        + f"""
graph = new_graph()
taken, at = alloc_node(graph, {8 * MIB})
made = c_void_p()
use = add_fill(graph, fill(at, 6, 4), taken)
show(
    cuda.cuMemsetD32_v2(at, 1, N(1)),
    cuda.cuGraphClone(byref(made), graph),
    cuda.cuGraphDestroyNode(use),
)
runnable = instantiate(graph)
show(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
run(runnable)
show(number_at(at))
sys.stdin.readline()
show(cuda.cuGraphLaunch(runnable, stream))
ok(cuda.cuMemFree_v2(at))
run(runnable)
show(number_at(at), cuda.cuMemFree_v2(at), cuda.cuMemFree_v2(at))
ok(cuda.cuGraphExecDestroy(runnable))
runnable = instantiate(graph)
ok(cuda.cuGraphExecDestroy(runnable))
show(free_node(graph, at, use), free_node(graph, at), free_node(graph, c_uint64(4096)))
ok(cuda.cuDeviceGraphMemTrim(0))
high = c_uint64()
low = c_uint64(0)
ok(cuda.cuDeviceGetGraphMemAttribute(0, 3, byref(high)))
show(high.value)
ok(cuda.cuDeviceSetGraphMemAttribute(0, 3, byref(low)))
ok(cuda.cuDeviceGetGraphMemAttribute(0, 3, byref(high)))
show(high.value, cuda.cuDeviceSetGraphMemAttribute(0, 2, byref(low)))
info, other = Info(), new_graph()
runnable = instantiate(graph)
alloc_node(other, {8 * MIB})
show(cuda.cuGraphExecUpdate_v2(runnable, other, byref(info)), info.result)
""",
    )
    assert [program.line() for _ in range(3)] == ["1 801 801", "801", "6"]
    assert machine.used() == 8 * MIB
    program.go_on()
    assert program.rest() == ["1", "6 0 1", "0 1 1", str(8 * MIB), "0 1", "910 2"]
    assert machine.used() == 0


def test_a_graph_is_drawn_with_its_edges(machine: Machine) -> None:
    drawing = machine.folder / "graph.dot"
    assert lines(
        machine,
        f"""
target, graph = alloc(4096), new_graph()
one = add_fill(graph, fill(target, 1))
add_fill(graph, fill(target, 2), one)
show(
    cuda.cuGraphDebugDotPrint(graph, b"{drawing}", 1),
    cuda.cuGraphDebugDotPrint(graph, b"{drawing}/not-a-folder", 1),
)
""",
    ) == ["0 304"]
    text = drawing.read_text()
    assert text.startswith("digraph")
    assert (text.count("MEMSET"), text.count("->")) == (2, 1)
