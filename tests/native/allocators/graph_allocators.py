"""Graphs that allocate."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p

from tests.native.allocators.allocation import (
    LEGACY,
    GiveBack,
    RefusedError,
    cuda,
    kind,
    ok,
)
from tests.native.allocators.memory_allocators import DEVICE_0, DOMAIN_1_OF_DEVICE_0


class AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", c_int * 22),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    )


def alloc_node(size: int, place: tuple[int, int] = DEVICE_0) -> AllocNode:
    node = AllocNode(size=size)
    node.pool[0] = 1  # pinned
    node.pool[2], node.pool[3] = place
    return node


def new_graph() -> c_void_p:
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


@contextmanager
def instantiate_graph(graph: c_void_p) -> Iterator[c_void_p]:
    """Yield the executable graph; destroy it if a call in the block is refused."""
    runnable = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(runnable), graph, c_ulonglong(0)))
    try:
        yield runnable
    except RefusedError:
        cuda.cuGraphExecDestroy(runnable)
        raise


def launch_graph(graph: c_void_p, pointer: int) -> GiveBack:
    with instantiate_graph(graph) as runnable:
        ok(cuda.cuGraphLaunch(runnable, LEGACY))
    return lambda: int(
        cuda.cuMemFree_v2(c_uint64(pointer))
        or cuda.cuGraphExecDestroy(runnable)
        or cuda.cuDeviceGraphMemTrim(0)
    )


@kind("graph-node", "cuGraphAddMemAllocNode, cuGraphLaunch", "cuMemFree_v2, cuDeviceGraphMemTrim")
def _graph_node(size: int) -> GiveBack:
    graph, made, node = new_graph(), c_void_p(), alloc_node(size)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    return launch_graph(graph, node.pointer)


@kind(
    "graph-node-in-a-locality-domain",
    "cuGraphAddMemAllocNode, cuGraphLaunch",
    "cuMemFree_v2, cuDeviceGraphMemTrim",
)
def _graph_node_in_a_domain(size: int) -> GiveBack:
    graph, made, node = new_graph(), c_void_p(), alloc_node(size, DOMAIN_1_OF_DEVICE_0)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    return launch_graph(graph, node.pointer)


class NodeParams(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("reserved", c_int * 3),
        ("alloc", AllocNode),
        ("rest", c_int * 30),
    )


@kind("graph-any-node", "cuGraphAddNode_v2, cuGraphLaunch", "cuMemFree_v2, cuDeviceGraphMemTrim")
def _graph_any_node(size: int) -> GiveBack:
    graph, made = new_graph(), c_void_p()
    node = NodeParams(type=10, alloc=alloc_node(size))
    ok(cuda.cuGraphAddNode_v2(byref(made), graph, None, None, c_size_t(0), byref(node)))
    return launch_graph(graph, node.alloc.pointer)


@kind(
    "graph-child", "cuGraphAddChildGraphNode, cuGraphLaunch", "cuMemFree_v2, cuDeviceGraphMemTrim"
)
def _graph_child(size: int) -> GiveBack:
    parent, child, made, node = new_graph(), new_graph(), c_void_p(), alloc_node(size)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), child, None, c_size_t(0), byref(node)))
    ok(cuda.cuGraphAddChildGraphNode(byref(made), parent, None, c_size_t(0), child))
    return launch_graph(parent, node.pointer)


@kind(
    "graph-recorded",
    "cuMemAllocAsync while recording, cuGraphLaunch",
    "cuMemFree_v2, cuDeviceGraphMemTrim",
)
def _graph_recorded(size: int) -> GiveBack:
    stream, graph, pointer = c_void_p(), c_void_p(), c_uint64()
    ok(cuda.cuStreamCreate(byref(stream), 0))
    ok(cuda.cuStreamBeginCapture_v2(stream, 0))
    ok(cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), stream))
    ok(cuda.cuStreamEndCapture(stream, byref(graph)))
    return launch_graph(graph, pointer.value)


@kind("graph-uploaded", "cuGraphUpload", "cuDeviceGraphMemTrim")
def _graph_uploaded(size: int) -> GiveBack:
    graph, made, node = new_graph(), c_void_p(), alloc_node(size)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    with instantiate_graph(graph) as runnable:
        ok(cuda.cuGraphUpload(runnable, LEGACY))
    return lambda: int(cuda.cuGraphExecDestroy(runnable) or cuda.cuDeviceGraphMemTrim(0))


@kind("graph-uploaded-at-once", "cuGraphInstantiateWithParams", "cuDeviceGraphMemTrim")
def _graph_uploaded_at_once(size: int) -> GiveBack:
    graph, made, node, runnable = new_graph(), c_void_p(), alloc_node(size), c_void_p()
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    upload = (c_ulonglong * 4)(2)
    ok(cuda.cuGraphInstantiateWithParams(byref(runnable), graph, upload))
    return lambda: int(cuda.cuGraphExecDestroy(runnable) or cuda.cuDeviceGraphMemTrim(0))
