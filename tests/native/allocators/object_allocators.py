"""Arrays and imported memory."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

from tests.native.allocators.allocation import LEGACY, GiveBack, cuda, kind, ok
from tests.native.allocators.memory_allocators import create


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
    """CUarrayMapInfo, for tiles of one level of an array."""

    _fields_ = (
        ("resource_type", c_int),
        ("resource", c_void_p),
        ("subresource_type", c_int),
        ("padding", c_int),
        ("level", c_uint),
        ("layer", c_uint),
        ("offsets", c_uint * 3),
        ("extents", c_uint * 3),
        ("operation", c_int),
        ("handle_type", c_int),
        ("handle", c_uint64),
        ("offset", c_ulonglong),
        ("device_mask", c_uint),
        ("flags", c_uint),
        ("reserved", c_uint * 2),
    )


class SparseProperties(ctypes.Structure):
    _fields_ = (
        ("tile", c_uint * 3),
        ("miptail_first_level", c_uint),
        ("miptail_size", c_ulonglong),
        ("flags", c_uint),
        ("reserved", c_uint * 4),
    )


SPARSE = 0x40  # CUDA_ARRAY3D_SPARSE
TILE_POOL = 1  # CU_MEM_CREATE_USAGE_TILE_POOL
MAP = 1
TILE_BYTES = 1 << 16


@kind("sparse-array", "cuMemCreate, cuMemMapArrayAsync, cuMemRelease", "cuArrayDestroy")
def _sparse(size: int) -> GiveBack:
    """Fill the size with whole tiles of a sparse array."""
    made, properties = c_void_p(), SparseProperties()
    # An array of four floats an element; the sides of its tiles are the driver's affair.
    probe = Array3D(1024, 1024, 0, FLOAT, 4, SPARSE)
    ok(cuda.cuArray3DCreate_v2(byref(made), byref(probe)))
    ok(cuda.cuArrayGetSparseProperties(byref(properties), made) or cuda.cuArrayDestroy(made))
    width, height, _ = properties.tile
    columns = 32
    rows = size // TILE_BYTES // columns
    sparse = Array3D(columns * width, rows * height, 0, FLOAT, 4, SPARSE)
    handle = create(size, usage=TILE_POOL)
    ok(cuda.cuArray3DCreate_v2(byref(made), byref(sparse)))
    tile = Tile(resource=made, operation=MAP, handle=handle.value, device_mask=1)
    tile.extents[:] = (columns * width, rows * height, 1)
    ok(cuda.cuMemMapArrayAsync(byref(tile), 1, LEGACY))
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
