"""Code on the stand-in driver: variables and parameters of modules, libraries, linking."""

from tests.native.driver_program import Program, lines_after
from tests.native.machine import MIB, Machine

CODE = """
from ctypes import c_char_p, c_uint

PTX = b'''.version 7.0
.target sm_80
.address_size 64 // .entry not_this()
/* .global .u32 nor_this; */
.visible .global .align 4 .b8 table[16] = {1, 2, 0x3, 4U};
.visible .const .f32 pi = 0f40490FDB;
.visible .global .v4.f32 vectors[2][2];
.visible .global .attribute(.managed) .s64 shared = -7;
.global .texref picture;
.func (.param .b32 r) helper(.param .b32 a) { .reg .b32 x; ret; }
.visible .entry two(.param .u64 .ptr .global .align 16 a, .param .u32 n, .param .align 8 .b8 s[24])
.maxntid 256, 1, 1
{ .global .u32 inside; { ret; } }
.weak.entry idle() { ret; }
'''


def load(image):
    module = c_void_p()
    return cuda.cuModuleLoadData(byref(module), image), module


def variable(module, name):
    at, size = c_uint64(), c_size_t()
    result = cuda.cuModuleGetGlobal_v2(byref(at), byref(size), module, name)
    return (result, at, size.value) if result == 0 else (result, at, 0)


def content(at, size):
    back = ctypes.create_string_buffer(size)
    ok(cuda.cuMemcpyDtoH_v2(back, at, c_size_t(size)))
    return back.raw
"""


lines = lines_after(CODE)


def test_variables_of_modules_have_memory_and_initial_values(machine: Machine) -> None:
    assert lines(
        machine,
        """
import struct

result, module = load(PTX)
(_, table, size), (_, pi, _) = variable(module, b"table"), variable(module, b"pi")
show(result, size, list(content(table, 6)), struct.unpack("f", content(pi, 4))[0] > 3.14159)
show(
    variable(module, b"vectors")[2],
    struct.unpack("q", content(variable(module, b"shared")[1], 8))[0],
)
show(
    [
        variable(module, name)[0]
        for name in (b"not_this", b"nor_this", b"inside", b"two", b"")
    ]
)
ok(cuda.cuMemsetD32_v2(table, 5, c_size_t(1)))
show(number_at(variable(module, b"table")[1]))
show(
    cuda.cuMemFree_v2(table),
    cuda.cuModuleUnload(module),
    cuda.cuMemsetD32_v2(table, 5, c_size_t(1)),
)
show(load(b".version 7.0 .global .u64 a; .global .u64 b = a;")[0], load(b"nothing")[0])
""",
    ) == [
        "0 16 [1, 2, 3, 4, 0, 0] True",
        "64 -7",
        "[500, 500, 500, 500, 500]",
        "5",
        "1 0 1",
        "801 200",
    ]


def test_variables_take_memory_of_the_card_as_long_as_their_module(machine: Machine) -> None:
    program = Program(
        machine,
        CODE
        + f"""
image = b".version 7.0 .visible .global .b8 big[{8 * MIB}];"
show(load(b".version 7.0 .visible .global .b8 big[{9000 * MIB}];")[0])
result, module = load(image)
show(result)
sys.stdin.readline()
ok(cuda.cuModuleUnload(module))
show("unloaded")
sys.stdin.readline()
made = c_void_p()
ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
ok(load(image)[0])
ok(cuda.cuCtxDestroy_v2(made))
show("destroyed")
sys.stdin.readline()
""",
    )
    assert [program.line(), program.line()] == ["2", "0"]
    assert machine.used() == 8 * MIB
    for step in ("unloaded", "destroyed"):
        program.go_on()
        assert program.line() == step
        assert machine.used() == 0
    program.go_on()
    program.rest()


def test_kernels_show_their_parameters_and_are_one_handle(machine: Machine) -> None:
    assert lines(
        machine,
        """
module = load(PTX)[1]
function, again = c_void_p(), c_void_p()
ok(cuda.cuModuleGetFunction(byref(function), module, b"two"))
ok(cuda.cuModuleGetFunction(byref(again), module, b"two"))
show(function.value == again.value)


def parameter(i):
    at, size = c_size_t(), c_size_t()
    return (
        cuda.cuFuncGetParamInfo(function, c_size_t(i), byref(at), byref(size)),
        at.value,
        size.value,
    )


show([parameter(i) for i in range(4)])
show(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None))
show(
    [
        cuda.cuModuleGetFunction(byref(again), module, name)
        for name in (b"idle", b"tw", b"helper", b"not_this")
    ]
)
library, count, kernel = c_void_p(), c_uint(), c_void_p()
ok(cuda.cuLibraryLoadData(byref(library), PTX, None, None, 0, None, None, 0))
ok(cuda.cuLibraryGetKernelCount(byref(count), library))
all = (c_void_p * 3)()
ok(cuda.cuLibraryEnumerateKernels(all, 3, library))
ok(cuda.cuLibraryGetKernel(byref(kernel), library, b"two"))
show(count.value, all[0] == kernel.value, all[2])
at, size = c_uint64(), c_size_t()
show(
    *(
        call(byref(at), byref(size), library, name)
        for call in (cuda.cuLibraryGetGlobal, cuda.cuLibraryGetManaged)
        for name in (b"table", b"shared")
    )
)
show(
    cuda.cuLibraryGetUnifiedFunction(byref(at), library, b"two"),
    cuda.cuModuleGetTexRef(byref(at), module, b"picture"),
    cuda.cuModuleGetTexRef(byref(at), module, b"table"),
    cuda.cuModuleGetSurfRef(byref(at), module, b"picture"),
)
""",
    ) == [
        "True",
        "[(0, 0, 8), (0, 8, 4), (0, 16, 24), (1, 0, 0)]",
        "1",
        "[0, 500, 500, 500]",
        "2 True None",
        "0 0 500 0",
        "500 801 500 500",
    ]


def test_parameters_beyond_what_any_kernel_has_are_refused(machine: Machine) -> None:
    assert lines(
        machine,
        """
image = b".version 7.0 .visible .entry wide(.param .align 8 .b8 s[18446744073709551615]) { ret; }"
result, module = load(image)
show(result, cuda.cuModuleGetFunction(byref(c_void_p()), module, b"wide"))
""",
    ) == ["0 218"]


def test_linking_makes_one_image_or_reports_what_is_wrong(machine: Machine) -> None:
    source = machine.folder / "more.ptx"
    source.write_text(".version 7.0 .visible .entry more(.param .u32 n) { ret; }")
    assert lines(
        machine,
        f"""
log = ctypes.create_string_buffer(256)
options, values = (ctypes.c_int * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(log), 256)
state, image, size = c_void_p(), c_void_p(), c_size_t()
ok(cuda.cuLinkCreate_v2(2, options, values, byref(state)))
add = lambda text, type=1: cuda.cuLinkAddData_v2(
    state, type, text, c_size_t(len(text)), b"x", 0, None, None
)
show(
    cuda.cuLinkComplete(state, byref(image), byref(size)),
    add(PTX),
    add(b"no code"),
    add(PTX, 0),
    add(PTX, 9),
)
show(
    add(b".version 7.0 .global .u32 table;"),
    values[1] == len(log.value),
    b"table" in log.value,
)
show(
    add(b".version 7.0 .extern .global .u32 later;"),
    cuda.cuLinkComplete(state, byref(image), byref(size)),
)
show(add(b".version 7.0 .visible .global .u32 later = 9;"))
file = cuda.cuLinkAddFile_v2
show(
    file(state, 1, b"{source}", 0, None, None),
    file(state, 1, b"{source}.none", 0, None, None),
)
ok(cuda.cuLinkComplete(state, byref(image), byref(size)))
result, module = load(image)
function = c_void_p()
ok(cuda.cuLinkDestroy(state))
show(
    result, size.value > 0, cuda.cuLinkDestroy(None), number_at(variable(module, b"later")[1])
)
show(
    *(
        cuda.cuModuleGetFunction(byref(function), module, name)
        for name in (b"two", b"more", b"less")
    )
)
""",
    ) == ["1 0 218 801 1", "218 True True", "0 218", "0", "0 301", "0 True 400 9", "0 0 500"]


def test_clusters_are_what_cards_of_compute_capability_9_have(machine: Machine) -> None:
    machine.settings["devices"][1].update(major=9, minor=0)
    machine.write()
    assert lines(
        machine,
        """
class Config(ctypes.Structure):
    _fields_ = [
        ("dims", c_uint * 7),
        ("stream", c_void_p),
        ("attrs", c_void_p),
        ("count", c_uint),
    ]


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", c_uint * 16)]


config, number = Config((c_uint * 7)(64, 1, 1, 1024, 1, 1, 0)), ctypes.c_int()
show(cuda.cuOccupancyMaxPotentialClusterSize(byref(number), kernel(), byref(config)))
ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 1))
ok(cuda.cuCtxSetCurrent(context))
function = kernel()
show(
    cuda.cuOccupancyMaxPotentialClusterSize(byref(number), function, byref(config)),
    number.value,
)
cluster = Attribute(4, 0, (c_uint * 16)(2, 2, 1))
config.attrs, config.count = ctypes.addressof(cluster), 1
show(
    cuda.cuOccupancyMaxActiveClusters(byref(number), function, byref(config)), number.value
)
cluster.value[0] = 5
show(cuda.cuOccupancyMaxActiveClusters(byref(number), function, byref(config)))
""",
    ) == ["801", "0 8", "0 54", "912"]
