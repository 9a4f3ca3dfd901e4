"""A small program on the stand-in driver, written in the test that runs it."""

import subprocess
import sys
from collections.abc import Callable
from typing import Self

from tests.native.machine import Machine
from tests.waiting import PATIENCE_S

PRELUDE = """
import ctypes, sys
from ctypes import byref, c_uint32, c_uint64, c_size_t, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    assert result == 0, result


context, stream, block = c_void_p(), c_void_p(), c_uint64()
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuStreamCreate(byref(stream), 1))


def alloc(size):
    made = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(made), c_size_t(size)))
    return made


def show(*values):
    print(*values, flush=True)


def number_at(at):
    number = c_uint32()
    ok(cuda.cuMemcpyDtoH_v2(byref(number), at, c_size_t(4)))
    return number.value


def kernel(name=b"idle", parameters=b""):
    module, function = c_void_p(), c_void_p()
    image = b".version 6.0\\n.target sm_50\\n.visible .entry %s(%s)\\n{ ret; }\\n"
    ok(cuda.cuModuleLoadData(byref(module), image % (name, parameters)))
    ok(cuda.cuModuleGetFunction(byref(function), module, name))
    return function


def busy(stream, blocks=21600 * 60):
    function = kernel()
    ok(cuda.cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, None, None))
"""


class Program:
    """A Python program with the driver loaded; it prints lines, and continues when asked to."""

    def __init__(
        self, machine: Machine, body: str, *arguments: str, env: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + body, *arguments],
            env=env or machine.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        with self.process:
            self.process.kill()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        try:
            out, _ = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()  # one that has ended already is let be
        assert self.process.returncode == 0
        return out.split("\n")[:-1]


def lines_after(beginning: str) -> Callable[[Machine, str], list[str]]:
    """Return a reader of the lines of programs that begin with this text and end by themselves."""
    return lambda machine, body: Program(machine, beginning + body).rest()
