"""What the libraries show and need: the .def lists and nothing else."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.native.machine import FAKEGPU, LIBVGPU, ROOT


def defined(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def rows(file: str, macro: str) -> set[str]:
    return set(re.findall(rf"^{macro}\((\w+)", (ROOT / file).read_text(), re.MULTILINE))


def test_libvgpu_exports_the_lists_and_the_two_lookups() -> None:
    lists = rows("native/libvgpu/src/cuda.def", "HOOK") | rows(
        "native/libvgpu/src/nvml.def", "HOOK"
    )
    assert defined(LIBVGPU) == lists | {"dlsym", "dlvsym"}


@pytest.mark.parametrize(
    ("library", "file", "extra"),
    [
        ("libcuda.so.1", "driver.def", set()),
        ("libnvidia-ml.so.1", "nvml.def", {"nvmlErrorString"}),
    ],
)
def test_the_stand_ins_export_their_lists(library: str, file: str, extra: set[str]) -> None:
    assert defined(FAKEGPU / library) == rows(f"native/fakegpu/src/{file}", "FN") | extra


def test_every_altered_function_exists_in_the_stand_in() -> None:
    assert rows("native/libvgpu/src/cuda.def", "HOOK") <= rows(
        "native/fakegpu/src/driver.def", "FN"
    )


def test_libvgpu_needs_the_c_library_alone() -> None:
    listing = subprocess.run(
        ["readelf", "-d", LIBVGPU], check=True, capture_output=True, text=True
    ).stdout
    assert re.findall(r"NEEDED.*\[(.*?)\]", listing) == ["libc.so.6"]
