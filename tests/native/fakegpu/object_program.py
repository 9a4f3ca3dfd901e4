"""What the programs of tests about arrays and other objects begin with (driver_program.py)."""

OBJECTS = """
from ctypes import POINTER, Structure, c_float, c_int, c_uint, c_ulonglong, cast


class Array(Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class Memory(Structure):
    _fields_ = [
        ("type", c_int),
        ("handle", c_void_p * 2),
        ("size", c_ulonglong),
        ("rest", c_uint * 18),
    ]


class Mapped(Structure):
    _fields_ = [
        ("offset", c_ulonglong),
        ("array", Array),
        ("levels", c_uint),
        ("rest", c_uint * 17),
    ]


FLOAT = 0x20


def mipmap(levels, *sides, flags=0):
    made = c_void_p()
    ok(
        cuda.cuMipmappedArrayCreate(
            byref(made), byref(Array(*sides, FLOAT, 1, flags)), levels
        )
    )
    return made


def level(of, number):
    made = c_void_p()
    return cuda.cuMipmappedArrayGetLevel(byref(made), of, number), made


def sides(of):
    seen = Array()
    ok(cuda.cuArray3DGetDescriptor_v2(byref(seen), of))
    return seen.width, seen.height, seen.depth
"""
