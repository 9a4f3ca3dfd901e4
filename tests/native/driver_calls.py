"""The driver's and NVML's functions by name, and which of them libvgpu alters."""

import re
from dataclasses import dataclass
from pathlib import Path

import pynvml

from tests.native.machine import ROOT

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, order=True)
class Request:
    """A request to cuGetProcAddress; flags 2: per-thread default stream."""

    name: str
    version: int
    flags: int


@dataclass(frozen=True)
class Hook:
    """A row of cuda.def: the exported symbol, the request that finds it, its parameters.

    A letter for each parameter: p, a pointer or a handle; n, a number. A structure that is handed
    over by value lies on the stack, and has none.
    """

    symbol: str
    request: Request
    parameters: str


def requests(file: str) -> dict[Request, tuple[str, ...]]:
    """Requests of a file of tests/native/data, with what follows them on the line."""
    found = {}
    for line in (DATA / file).read_text().splitlines():
        if not line.startswith("#"):
            name, version, flags, *rest = line.split()
            found[Request(name, int(version), int(flags))] = tuple(rest)
    return found


def letters(parameters: str) -> str:
    numbers = r"\s*(unsigned |long |int |size_t |cuuint64_t |CUdevice )"
    if parameters.strip() == "void":
        return ""
    in_registers = (p for p in parameters.split(",") if not re.match(r"\s*CUipcMemHandle_v1 \w", p))
    return "".join("n" if re.match(numbers, p) and "*" not in p else "p" for p in in_registers)


def hooks() -> list[Hook]:
    text = re.sub(
        r"/\*.*?\*/", "", (ROOT / "native/libvgpu/src/intercept/cuda.def").read_text(), flags=re.S
    )
    rows = re.findall(r'^[A-Z]+\((\w+), "(\w+)", (\d+), (\d+),\s*\((.*?)\)[,)]', text, re.S | re.M)
    return [
        Hook(symbol, Request(name, int(version), int(flags)), letters(parameters))
        for symbol, name, version, flags, parameters in rows
    ]


def nvml_altered() -> list[str]:
    text = (ROOT / "native/libvgpu/src/intercept/nvml.def").read_text()
    return re.findall(r"^HOOK\((\w+),", text, re.M)


def nvml_functions() -> list[str]:
    """Every function that NVIDIA's own Python binding of NVML 13 calls."""
    text = Path(pynvml.__file__).read_text()
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text)))
