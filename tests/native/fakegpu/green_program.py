"""The beginning of programs that make green contexts (driver_program.py)."""

GREEN = """
from ctypes import Structure, c_float, c_int, c_uint


class Resource(Structure):
    _fields_ = [
        ("type", c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("count", c_uint),
        ("rest", ctypes.c_ubyte * 44),
    ]


SMS = 1
whole = Resource()
ok(cuda.cuDeviceGetDevResource(0, byref(whole), SMS))


def split(groups, count, least, left=None, of=whole):
    number = c_uint(count)
    return cuda.cuDevSmResourceSplitByCount(
        groups, byref(number), byref(of), left, 0, c_uint(least)
    ), number.value


def described(*resources):
    made = c_void_p()
    some = (Resource * len(resources))(*resources)
    return cuda.cuDevResourceGenerateDesc(byref(made), some, len(resources)), made
"""
