"""Every way in which a program gets device memory, as pairs of "take" and "give back".

Part of the program under test (client.py imports it): each kind makes real driver calls through
ctypes. `take(bytes)` returns a CUresult and, on success, what gives the memory back.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any


class Driver:
    """The driver, loaded with the first call: the tests read KINDS where there is none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)


cuda = Driver()

GiveBack = Callable[[], int]
Taken = tuple[int, GiveBack | None]
LEGACY = c_void_p(0)
MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One way: the driver functions that take and end it, and what may follow."""

    name: str
    takes: str
    ends: str
    take: Callable[[int], Taken]
    given_up: bool = False  # the process that holds it lets it go before it is refused anything


KINDS: dict[str, Kind] = {}


class RefusedError(Exception):
    """A driver call failed; the argument is its CUresult."""


def ok(result: int) -> None:
    if result != 0:
        raise RefusedError(result)


def kind(
    name: str, takes: str, ends: str, given_up: bool = False
) -> Callable[[Callable[[int], GiveBack]], Callable[[int], GiveBack]]:
    """Registers a way; the function raises RefusedError where the driver says no."""

    def register(function: Callable[[int], GiveBack]) -> Callable[[int], GiveBack]:
        def take(size: int) -> Taken:
            try:
                return 0, function(size)
            except RefusedError as refused:
                return int(refused.args[0]), None

        KINDS[name] = Kind(name, takes, ends, take, given_up)
        return function

    return register


def freeing(pointer: c_uint64) -> GiveBack:
    return lambda: int(cuda.cuMemFree_v2(pointer))


@kind("alloc", "cuMemAlloc_v2", "cuMemFree_v2")
def _alloc(size: int) -> GiveBack:
    pointer = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)))
    return freeing(pointer)


@kind("freed-async", "cuMemAlloc_v2", "cuMemFreeAsync")
def _alloc_freed_async(size: int) -> GiveBack:
    pointer = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)))
    return lambda: int(cuda.cuMemFreeAsync(pointer, LEGACY))


@kind("pitch", "cuMemAllocPitch_v2", "cuMemFree_v2")
def _pitch(size: int) -> GiveBack:
    pointer, pitch = c_uint64(), c_size_t()
    ok(
        cuda.cuMemAllocPitch_v2(
            byref(pointer), byref(pitch), c_size_t(100), c_size_t(size // 512), 4
        )
    )
    return freeing(pointer)


@kind("managed", "cuMemAllocManaged", "cuMemFree_v2")
def _managed(size: int) -> GiveBack:
    pointer = c_uint64()
    ok(cuda.cuMemAllocManaged(byref(pointer), c_size_t(size), 1))
    return freeing(pointer)


@kind("stream-ordered", "cuMemAllocAsync", "cuMemFreeAsync")
def _async(size: int) -> GiveBack:
    pointer = c_uint64()
    ok(cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), LEGACY))
    return lambda: int(cuda.cuMemFreeAsync(pointer, LEGACY))


@kind("stream-ordered-ptsz", "cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz")
def _async_ptsz(size: int) -> GiveBack:
    pointer = c_uint64()
    ok(cuda.cuMemAllocAsync_ptsz(byref(pointer), c_size_t(size), LEGACY))
    return lambda: int(cuda.cuMemFreeAsync_ptsz(pointer, LEGACY))


@kind("default-pool", "cuMemAllocFromPoolAsync", "cuMemFree_v2")
def _default_pool(size: int) -> GiveBack:
    pool, pointer = c_void_p(), c_uint64()
    ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
    ok(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, LEGACY))
    return freeing(pointer)


def new_pool(threshold: int = 0) -> c_void_p:
    properties = (c_int * 22)(1, 0, 1, 0)  # pinned, no handles, on device 0; 88 bytes
    pool = c_void_p()
    ok(cuda.cuMemPoolCreate(byref(pool), properties))
    value = c_uint64(threshold)
    ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(value)))
    return pool


@kind("own-pool", "cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync_ptsz, cuMemPoolDestroy")
def _own_pool(size: int) -> GiveBack:
    pool, pointer = new_pool(), c_uint64()
    result = cuda.cuMemAllocFromPoolAsync_ptsz(byref(pointer), c_size_t(size), pool, LEGACY)
    if result != 0:
        cuda.cuMemPoolDestroy(pool)
    ok(result)
    return lambda: int(cuda.cuMemFreeAsync_ptsz(pointer, LEGACY) or cuda.cuMemPoolDestroy(pool))


@kind(
    "kept-by-pool",
    "cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    given_up=True,
)
def _kept(size: int) -> GiveBack:
    """Freed, but the pool's release threshold keeps it on the card."""
    pool, pointer = new_pool(1 << 62), c_uint64()
    ok(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, LEGACY))
    ok(cuda.cuMemFreeAsync(pointer, LEGACY))
    return lambda: int(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))


def create(size: int) -> c_uint64:
    handle = c_uint64()
    properties = (c_int * 8)(1, 0, 1, 0)
    ok(cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_ulonglong(0)))
    return handle


def mapped(handle: c_uint64, size: int) -> c_uint64:
    address = c_uint64()
    ok(
        cuda.cuMemAddressReserve(
            byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_ulonglong(0)
        )
    )
    ok(cuda.cuMemMap(address, c_size_t(size), c_size_t(0), handle, c_ulonglong(0)))
    return address


@kind("physical", "cuMemCreate", "cuMemRelease")
def _physical(size: int) -> GiveBack:
    handle = create(size)
    return lambda: int(cuda.cuMemRelease(handle))


@kind("mapped", "cuMemCreate, cuMemMap, cuMemRelease", "cuMemUnmap")
def _mapped(size: int) -> GiveBack:
    """As PyTorch's expandable segments do: the handle is let go while the mapping lives."""
    handle = create(size)
    address = mapped(handle, size)
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuMemUnmap(address, c_size_t(size)))


@kind("retained", "cuMemMap, cuMemRetainAllocationHandle, cuMemUnmap", "cuMemRelease")
def _retained(size: int) -> GiveBack:
    handle, again = create(size), c_uint64()
    address = mapped(handle, size)
    ok(cuda.cuMemRelease(handle))
    ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address.value)))
    ok(cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(cuda.cuMemRelease(again))


@kind(
    "imported-again",
    "cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemRelease",
    "cuMemRelease",
)
def _imported(size: int) -> GiveBack:
    """Exported and imported by one process: charged once, until both handles are gone."""
    handle, again, file = create(size), c_uint64(), c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(file), handle, 1, c_ulonglong(0)))
    ok(cuda.cuMemImportFromShareableHandle(byref(again), c_void_p(file.value), 1))
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuMemRelease(again))


class MulticastProperties(ctypes.Structure):
    _fields_ = (
        ("devices", c_uint),
        ("size", c_size_t),
        ("handle_types", c_ulonglong),
        ("flags", c_ulonglong),
    )


def multicast(size: int) -> c_uint64:
    handle = c_uint64()
    ok(cuda.cuMulticastCreate(byref(handle), byref(MulticastProperties(1, size, 0, 0))))
    return handle


@kind("multicast", "cuMemCreate, cuMulticastBindMem, cuMemRelease", "cuMulticastUnbind")
def _multicast(size: int) -> GiveBack:
    handle, group = create(size), multicast(size)
    zero, length = c_size_t(0), c_size_t(size)
    ok(cuda.cuMulticastBindMem(group, zero, handle, zero, length, c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuMulticastUnbind(group, 0, zero, length))


@kind("multicast-object", "cuMemCreate, cuMulticastBindAddr, cuMemUnmap", "cuMemRelease")
def _multicast_object(size: int) -> GiveBack:
    """What is bound goes with the multicast object itself."""
    handle, group = create(size), multicast(size)
    address = mapped(handle, size)
    ok(cuda.cuMulticastBindAddr(group, c_size_t(0), address, c_size_t(size), c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle) or cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(cuda.cuMemRelease(group))


class Array3D(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class Array2D(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
    )


class Array2DOld(ctypes.Structure):
    _fields_ = (("width", c_uint), ("height", c_uint), ("format", c_int), ("channels", c_uint))


class Array3DOld(ctypes.Structure):
    _fields_ = (
        ("width", c_uint),
        ("height", c_uint),
        ("depth", c_uint),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


FLOAT = 0x20


def array(function: str, description: ctypes.Structure) -> GiveBack:
    handle = c_void_p()
    ok(getattr(cuda, function)(byref(handle), byref(description)))
    return lambda: int(cuda.cuArrayDestroy(handle))


@kind("array", "cuArrayCreate_v2", "cuArrayDestroy")
def _array(size: int) -> GiveBack:
    return array("cuArrayCreate_v2", Array2D(1024, size // 16384, FLOAT, 4))


@kind("array-3d", "cuArray3DCreate_v2", "cuArrayDestroy")
def _array_3d(size: int) -> GiveBack:
    return array("cuArray3DCreate_v2", Array3D(256, 256, size // 262144, FLOAT, 1, 0))


@kind("array-32-bit", "cuArrayCreate", "cuArrayDestroy")
def _array_old(size: int) -> GiveBack:
    return array("cuArrayCreate", Array2DOld(1024, size // 16384, FLOAT, 4))


@kind("array-3d-32-bit", "cuArray3DCreate", "cuArrayDestroy")
def _array_3d_old(size: int) -> GiveBack:
    return array("cuArray3DCreate", Array3DOld(256, 256, size // 262144, FLOAT, 1, 0))


@kind("mipmap", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy")
def _mipmap(size: int) -> GiveBack:
    handle, description = c_void_p(), Array3D(1024, size // 16384, 0, FLOAT, 4, 0)
    ok(cuda.cuMipmappedArrayCreate(byref(handle), byref(description), 1))
    return lambda: int(cuda.cuMipmappedArrayDestroy(handle))


class Tile(ctypes.Structure):
    _fields_ = (
        ("resource_type", c_int),
        ("resource", c_void_p),
        ("subresource_type", c_int),
        ("subresource", c_ulonglong * 4),
        ("operation", c_int),
        ("handle_type", c_int),
        ("handle", c_uint64),
        ("offset", c_ulonglong),
        ("rest", c_uint * 4),
    )


@kind("sparse-array", "cuMemCreate, cuMemMapArrayAsync, cuMemRelease", "cuArrayDestroy")
def _sparse(size: int) -> GiveBack:
    handle, tiles = create(size), (Tile * 1)()
    made = c_void_p()
    sparse = Array3D(1024, size // 16384, 0, FLOAT, 4, 0x40)
    ok(cuda.cuArray3DCreate_v2(byref(made), byref(sparse)))
    tiles[0].resource, tiles[0].operation, tiles[0].handle = made, 1, handle.value
    ok(cuda.cuMemMapArrayAsync(tiles, 1, LEGACY))
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuArrayDestroy(made))


class External(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle", c_void_p * 2),
        ("size", c_ulonglong),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    )


@kind("external", "cuImportExternalMemory", "cuDestroyExternalMemory")
def _external(size: int) -> GiveBack:
    handle, buffer = c_void_p(), c_uint64()
    ok(cuda.cuImportExternalMemory(byref(handle), byref(External(type=1, size=size))))
    window = (c_ulonglong * 11)(0, size)  # offset, size, flags, reserved: 88 bytes
    ok(cuda.cuExternalMemoryGetMappedBuffer(byref(buffer), handle, window))
    return lambda: int(cuda.cuMemFree_v2(buffer) or cuda.cuDestroyExternalMemory(handle))


class AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", c_int * 22),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    )


def alloc_node(size: int) -> AllocNode:
    node = AllocNode(size=size)
    node.pool[0] = node.pool[2] = 1  # pinned, on a device; its number is 0
    return node


def new_graph() -> c_void_p:
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


@contextmanager
def instantiated(graph: c_void_p) -> Iterator[c_void_p]:
    """The executable graph; on failure of what is done with it, it is destroyed."""
    runnable = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(runnable), graph, c_ulonglong(0)))
    try:
        yield runnable
    except RefusedError:
        cuda.cuGraphExecDestroy(runnable)
        raise


def launched(graph: c_void_p, pointer: int) -> GiveBack:
    with instantiated(graph) as runnable:
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
    return launched(graph, node.pointer)


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
    return launched(graph, node.alloc.pointer)


@kind(
    "graph-child", "cuGraphAddChildGraphNode, cuGraphLaunch", "cuMemFree_v2, cuDeviceGraphMemTrim"
)
def _graph_child(size: int) -> GiveBack:
    parent, child, made, node = new_graph(), new_graph(), c_void_p(), alloc_node(size)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), child, None, c_size_t(0), byref(node)))
    ok(cuda.cuGraphAddChildGraphNode(byref(made), parent, None, c_size_t(0), child))
    return launched(parent, node.pointer)


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
    return launched(graph, pointer.value)


@kind("graph-uploaded", "cuGraphUpload", "cuDeviceGraphMemTrim")
def _graph_uploaded(size: int) -> GiveBack:
    graph, made, node = new_graph(), c_void_p(), alloc_node(size)
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    with instantiated(graph) as runnable:
        ok(cuda.cuGraphUpload(runnable, LEGACY))
    return lambda: int(cuda.cuGraphExecDestroy(runnable) or cuda.cuDeviceGraphMemTrim(0))


@kind("graph-uploaded-at-once", "cuGraphInstantiateWithParams", "cuDeviceGraphMemTrim")
def _graph_uploaded_at_once(size: int) -> GiveBack:
    graph, made, node, runnable = new_graph(), c_void_p(), alloc_node(size), c_void_p()
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    upload = (c_ulonglong * 4)(2)
    ok(cuda.cuGraphInstantiateWithParams(byref(runnable), graph, upload))
    return lambda: int(cuda.cuGraphExecDestroy(runnable) or cuda.cuDeviceGraphMemTrim(0))
