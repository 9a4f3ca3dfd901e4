"""Blocks, pools and physical memory."""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

from tests.native.allocators.allocation import LEGACY, GiveBack, cuda, kind, ok

# CUmemLocation: a device, and the second locality domain of that device.
DEVICE_0 = (1, 0)
DOMAIN_1_OF_DEVICE_0 = (6, 1 << 8)


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
def _allocate_managed(size: int) -> GiveBack:
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


def new_pool(threshold: int = 0, place: tuple[int, int] = DEVICE_0) -> c_void_p:
    properties = (c_int * 22)(1, 0, *place)  # pinned, no handles; 88 bytes
    pool = c_void_p()
    ok(cuda.cuMemPoolCreate(byref(pool), properties))
    value = c_uint64(threshold)
    ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(value)))
    return pool


@kind("own-pool", "cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync_ptsz, cuMemPoolDestroy")
def _own_pool(size: int) -> GiveBack:
    return from_own_pool(size, new_pool())


@kind(
    "own-pool-in-a-locality-domain",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFreeAsync_ptsz, cuMemPoolDestroy",
)
def _own_pool_in_a_domain(size: int) -> GiveBack:
    return from_own_pool(size, new_pool(place=DOMAIN_1_OF_DEVICE_0))


@kind("pool-of-a-locality-domain", "cuMemAllocFromPoolAsync", "cuMemFree_v2")
def _pool_of_a_domain(size: int) -> GiveBack:
    pool, pointer = c_void_p(), c_uint64()
    place = (c_int * 2)(*DOMAIN_1_OF_DEVICE_0)
    ok(cuda.cuMemGetDefaultMemPool(byref(pool), place, 1))
    ok(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, LEGACY))
    return freeing(pointer)


def from_own_pool(size: int, pool: c_void_p) -> GiveBack:
    pointer = c_uint64()
    result = cuda.cuMemAllocFromPoolAsync_ptsz(byref(pointer), c_size_t(size), pool, LEGACY)
    if result != 0:
        cuda.cuMemPoolDestroy(pool)
    ok(result)
    return lambda: int(cuda.cuMemFreeAsync_ptsz(pointer, LEGACY) or cuda.cuMemPoolDestroy(pool))


@kind(
    "kept-by-pool",
    "cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolSetAttribute",
    "cuStreamSynchronize, cuMemPoolTrimTo",
    given_up=True,
)
def _allocate_kept(size: int) -> GiveBack:
    """Freed, but the pool's release threshold keeps it on the card; trimmed without a wait before,
    it would keep it still."""
    pool, pointer = new_pool(1 << 62), c_uint64()
    ok(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, LEGACY))
    ok(cuda.cuMemFreeAsync(pointer, LEGACY))
    return lambda: int(cuda.cuStreamSynchronize(LEGACY) or cuda.cuMemPoolTrimTo(pool, c_size_t(0)))


POSIX_FILE = 1


def create(
    size: int, handle_types: int = 0, usage: int = 0, place: tuple[int, int] = DEVICE_0
) -> c_uint64:
    """`usage` is the upper half of the flags' first four bytes (CUmemAllocationProp)."""
    handle = c_uint64()
    properties = (c_int * 8)(1, handle_types, *place, 0, 0, usage << 16)
    ok(cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_ulonglong(0)))
    return handle


def map_memory(handle: c_uint64, size: int) -> c_uint64:
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


@kind("physical-in-a-locality-domain", "cuMemCreate", "cuMemRelease")
def _physical_in_a_domain(size: int) -> GiveBack:
    handle = create(size, place=DOMAIN_1_OF_DEVICE_0)
    return lambda: int(cuda.cuMemRelease(handle))


@kind("mapped", "cuMemCreate, cuMemMap, cuMemRelease", "cuMemUnmap")
def _allocate_mapped(size: int) -> GiveBack:
    """Map memory as PyTorch's expandable segments do: the handle goes while the mapping lives."""
    handle = create(size)
    address = map_memory(handle, size)
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuMemUnmap(address, c_size_t(size)))


@kind("retained", "cuMemMap, cuMemRetainAllocationHandle, cuMemUnmap", "cuMemRelease")
def _allocate_retained(size: int) -> GiveBack:
    handle, again = create(size), c_uint64()
    address = map_memory(handle, size)
    ok(cuda.cuMemRelease(handle))
    ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address.value)))
    ok(cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(cuda.cuMemRelease(again))


@kind(
    "imported-again",
    "cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemRelease",
    "cuMemRelease",
)
def _allocate_imported(size: int) -> GiveBack:
    """Exported and imported by one process: charged once, until both handles are gone."""
    handle, again, file = create(size, POSIX_FILE), c_uint64(), c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(file), handle, POSIX_FILE, c_ulonglong(0)))
    ok(cuda.cuMemImportFromShareableHandle(byref(again), c_void_p(file.value), POSIX_FILE))
    os.close(file.value)  # it would hold the memory as well
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
    """Bind memory to a multicast object, with which it is freed."""
    handle, group = create(size), multicast(size)
    address = map_memory(handle, size)
    ok(cuda.cuMulticastBindAddr(group, c_size_t(0), address, c_size_t(size), c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle) or cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(cuda.cuMemRelease(group))


@kind(
    "multicast-of-a-device", "cuMemCreate, cuMulticastBindMem_v2, cuMemRelease", "cuMulticastUnbind"
)
def _multicast_of_a_device(size: int) -> GiveBack:
    handle, group = create(size), multicast(size)
    zero, length = c_size_t(0), c_size_t(size)
    ok(cuda.cuMulticastBindMem_v2(group, 0, zero, handle, zero, length, c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuMulticastUnbind(group, 0, zero, length))


@kind(
    "multicast-object-of-a-device",
    "cuMemCreate, cuMulticastBindAddr_v2, cuMemUnmap",
    "cuMemRelease",
)
def _multicast_object_of_a_device(size: int) -> GiveBack:
    """Bound by an address in the middle of the mapping."""
    handle, group = create(size), multicast(size)
    address = map_memory(handle, size)
    middle, half = c_uint64(address.value + size // 2), c_size_t(size // 2)
    ok(cuda.cuMulticastBindAddr_v2(group, 0, c_size_t(0), middle, half, c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle) or cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(cuda.cuMemRelease(group))


class EndpointProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("device_or_count", c_uint),
        ("size", c_ulonglong),
        ("handle_types", c_uint),
        ("flags", c_uint),
    )


UNICAST, MULTICAST = 1, 2


def endpoint(size: int, kind: int) -> c_uint:
    """A logical endpoint of device 0, single or as the only member of a group."""
    number, status = c_uint(), c_int()
    properties = EndpointProperties(kind, 0 if kind == UNICAST else 1, size, 0, 0)
    ok(cuda.cuLogicalEndpointIdReserve(byref(number), 1))
    ok(cuda.cuLogicalEndpointCreate(number, byref(properties)))
    if kind == MULTICAST:
        ok(cuda.cuLogicalEndpointAddDevice(number, 0))
    ok(cuda.cuLogicalEndpointQuery(number, 1, byref(status)))
    assert status.value == 1
    return number


@kind(
    "logical-endpoint",
    "cuMemCreate, cuLogicalEndpointBindMem, cuMemRelease",
    "cuLogicalEndpointUnbind",
)
def _logical_endpoint(size: int) -> GiveBack:
    handle, number = create(size), endpoint(size, MULTICAST)
    zero, length = c_uint64(0), c_uint64(size)
    ok(cuda.cuLogicalEndpointBindMem(number, 0, zero, handle, zero, length, c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle))
    return lambda: int(cuda.cuLogicalEndpointUnbind(number, 0, zero, length))


@kind(
    "logical-endpoint-destroyed",
    "cuMemCreate, cuLogicalEndpointBindAddr, cuMemUnmap",
    "cuLogicalEndpointDestroy",
)
def _logical_endpoint_destroyed(size: int) -> GiveBack:
    handle, number = create(size), endpoint(size, UNICAST)
    address = map_memory(handle, size)
    at = c_void_p(address.value)
    ok(cuda.cuLogicalEndpointBindAddr(number, 0, c_uint64(0), at, c_uint64(size), c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle) or cuda.cuMemUnmap(address, c_size_t(size)))
    return lambda: int(
        cuda.cuLogicalEndpointDestroy(number) or cuda.cuLogicalEndpointIdRelease(number, 1)
    )
