"""The stand-in driver's functions by name, its configuration, modules and libraries."""

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.native.driver_calls import Request, hooks
from tests.native.driver_program import Program, lines_after
from tests.native.machine import CARDS, FAKEGPU, MIB, Client, Machine
from tests.waiting import PATIENCE_S, wait

ASK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(void)
{
    char name[64];
    int version, flags;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(library, "cuGetProcAddress_v2");
    while (scanf("%63s %d %d", name, &version, &flags) == 3) {
        void *found = NULL;
        Dl_info info = {0};
        if (get(name, &found, version, flags, NULL) == 0) dladdr(found, &info);
        printf("%s\n", info.dli_sname ? info.dli_sname : "-");
    }
    return 0;
}
"""


def answers(
    machine: Machine, compile_c: Callable[..., Path], asked: Sequence[Request], version: int
) -> list[str]:
    """The exported name that each request is answered with by such a driver; "-": none."""
    machine.settings["cuda_version"] = version
    machine.write()
    text = "".join(f"{r.name} {r.version} {r.flags}\n" for r in asked)
    done = subprocess.run(
        [compile_c(ASK, "-ldl")],
        env=machine.env(),
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_every_altered_function_is_found_by_the_request_of_its_row(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    rows = {hook.request: hook.symbol for hook in hooks()}
    assert answers(machine, compile_c, list(rows), 13050) == list(rows.values())


def test_a_request_is_answered_with_the_newest_function_that_caller_and_driver_know(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    asked = [
        Request("cuMulticastBindMem", 13050, 0),
        Request("cuMulticastBindMem", 13000, 0),
        Request("cuMulticastBindMem", 12000, 0),
        Request("cuMemAllocAsync", 13050, 2),
        Request("cuMemcpyHtoD", 13050, 2),  # there is none for the thread's own stream
        Request("cuTexObjectCreate", 13050, 0),
    ]
    newest = ["cuMulticastBindMem_v2", "cuMulticastBindMem", "-"]
    others = ["cuMemAllocAsync_ptsz", "cuMemcpyHtoD_v2", "-"]
    assert answers(machine, compile_c, asked, 13050) == [*newest, *others]
    assert answers(machine, compile_c, asked[:1], 12080) == ["cuMulticastBindMem"]


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
    assert machine.used_bytes() == 8 * MIB
    for step in ("unloaded", "destroyed"):
        program.go_on()
        assert program.line() == step
        assert machine.used_bytes() == 0
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


OUT_OF_MEMORY = 2


def open_context(client: Client) -> Client:
    assert client.call("open_device") == {"result": 0}
    return client


def configure_driver(machine: Machine, **settings: Any) -> Machine:
    machine.settings |= settings
    machine.write()
    return machine


def test_cuda_counts_the_fastest_card_first_and_nvml_by_the_bus(machine: Machine) -> None:
    configure_driver(machine, cuda_order=[1, 0])
    program = open_context(machine.start(machine.env()))
    assert program.call("uuid", ordinal=0)["uuid"] == CARDS[1]
    assert program.nvml("nvmlDeviceGetUUID", 0) == CARDS[0]
    by_bus = open_context(machine.start(machine.env(CUDA_DEVICE_ORDER="PCI_BUS_ID")))
    assert by_bus.call("uuid", ordinal=0)["uuid"] == CARDS[0]
    second = open_context(machine.start(machine.env(CUDA_VISIBLE_DEVICES="1")))
    assert second.call("uuid", ordinal=0)["uuid"] == CARDS[0]


def test_a_call_fails_as_often_as_configured(machine: Machine) -> None:
    fault = {"call": "cuMemAlloc", "result": OUT_OF_MEMORY, "after": 1, "times": 2}
    program = open_context(machine.start(configure_driver(machine, faults=[fault]).env()))
    assert [program.alloc(MIB)[0] for _ in range(4)] == [0, OUT_OF_MEMORY, OUT_OF_MEMORY, 0]


def test_nvml_fails_for_good_if_no_number_of_times_is_given(machine: Machine) -> None:
    fault = {"call": "nvmlDeviceGetMemoryInfo", "result": 999, "times": 0}
    node = machine.start(configure_driver(machine, faults=[fault]).env())
    for _ in range(3):
        assert node.nvml("nvmlDeviceGetMemoryInfo", 0) == {"error": "NVMLError_Unknown"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"faults": [{"call": "cuNothing"}]}, "a fault's call is none of those"),
        ({"cuda_order": [0]}, "cuda_order wants to name each device once"),
        ({"nvml_missing_percent": 100}, "nvml_missing_percent 0 to 99"),
        ({"time_slice_us": 0}, "time_slice_us and nvml_sample_ms want to be at least 1"),
    ],
)
def test_a_wrong_configuration_is_reported_in_a_sentence(
    machine: Machine, settings: dict[str, Any], message: str
) -> None:
    configure_driver(machine, **settings)
    done = subprocess.run(
        [FAKEGPU / "vgpu-probe", "--once"],
        env=machine.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr


def load(machine: Machine, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [FAKEGPU / "vgpu-load", *arguments], env=machine.env(), stdout=subprocess.PIPE
    )


def test_two_programs_take_turns_on_a_card(machine: Machine) -> None:
    # Kernels of 5 ms: 108 SMs hold 216 blocks, and 100 times that many take 100 waves of 50 us.
    with ExitStack() as stack:
        for _ in range(2):
            program = stack.enter_context(load(machine, "--seconds", "1000", "--blocks", "21600"))
            stack.callback(program.kill)

        def computed_ns() -> list[int]:
            return [p["computed_ns"][0] for p in machine.ctl("show")["processes"]]

        begun = wait(lambda: (now := computed_ns()) and len(now) == 2 and all(now) and now)

        def took_turns() -> bool:
            one, two = (now - then for now, then in zip(computed_ns(), begun, strict=True))
            return one + two >= 10**9 and one <= 2 * two and two <= 2 * one

        wait(took_turns, "both to have computed about as long", why=lambda: f"{computed_ns()}")


def test_a_program_that_is_alone_has_the_card_to_itself(machine: Machine) -> None:
    program = load(machine, "--seconds", "1", "--blocks", "21600", "--sync-every", "1")
    result = json.loads(program.communicate(timeout=PATIENCE_S)[0])
    assert result["kernel_ms"] == pytest.approx(5.0, abs=0.01)
    # On a busy machine the program itself comes late; the card never works faster.
    assert result["launches"] <= result["seconds"] * 1000 / 5 + 1


def test_where_processes_have_no_utilisation_nvml_reports_so(machine: Machine) -> None:
    configure_driver(machine, nvml_process_utilization=False)
    program = open_context(machine.start(machine.env()))
    assert program.nvml("nvmlDeviceGetProcessUtilization", 0, 0) == {
        "error": "NVMLError_NotSupported"
    }
