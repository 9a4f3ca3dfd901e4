"""Code on the stand-in driver: variables and kernels of modules and libraries."""

from tests.native.driver_program import Program, lines_after
from tests.native.machine import MIB, Machine

CODE = """
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


def test_variables_of_modules_have_memory_that_is_zero(machine: Machine) -> None:
    assert lines(
        machine,
        """
result, module = load(PTX)
table = variable(module, b"table")[1]
names = b"table", b"pi", b"vectors", b"shared", b"picture"
show(result, [variable(module, name)[2] for name in names], list(content(table, 6)))
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
show(load(b"nothing")[0])
""",
    ) == [
        "0 [16, 4, 64, 8, 0] [0, 0, 0, 0, 0, 0]",
        "[500, 500, 500, 500, 500]",
        "5",
        "1 0 1",
        "200",
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


def test_kernels_have_parameters_and_are_one_handle(machine: Machine) -> None:
    assert lines(
        machine,
        """
module = load(PTX)[1]
function, again, library, kernel = c_void_p(), c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuModuleGetFunction(byref(function), module, b"two"))
ok(cuda.cuModuleGetFunction(byref(again), module, b"two"))
show(function.value == again.value)
launch = lambda of, given: cuda.cuLaunchKernel(of, 1, 1, 1, 32, 1, 1, 0, None, given, None)
arguments = (c_void_p * 3)()
show(launch(function, None), launch(function, arguments))
show(
    [
        cuda.cuModuleGetFunction(byref(again), module, name)
        for name in (b"idle", b"tw", b"helper", b"not_this")
    ]
)
show(launch(again, None))
ok(cuda.cuLibraryLoadData(byref(library), PTX, None, None, 0, None, None, 0))
ok(cuda.cuLibraryGetKernel(byref(kernel), library, b"two"))
ok(cuda.cuKernelGetFunction(byref(function), kernel))
show(cuda.cuLibraryGetKernel(byref(kernel), library, b"none"), launch(function, arguments))
""",
    ) == ["True", "1 0", "[0, 500, 500, 500]", "0", "500 0"]
