"""Without NVML, or with a driver older than the library: one line if asked, and work continues."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.native.machine import CARDS, FAKEGPU, MIB, ROOT, Container
from tests.waiting import PATIENCE_S

PROGRAM = """
import ctypes
from tests.native import client
from tests.native.client import alloc, cuda, info, launch, open_device
assert open_device() == {"result": 0}
small = alloc(2 << 20)
assert small["result"] == 0
assert alloc(3 << 20)["result"] == 2
assert launch(kernels=50)["result"] == 0
assert cuda.cuMemFree_v2(ctypes.c_uint64(small["pointer"])) == 0
assert info()["total"] == 4 << 20
print("done")
"""
MACHINE = ("state", "machine", "card")
DRIVER = (
    *("driver", "context", "stream", "memory", "pool", "vmm", "copy", "module"),
    *("graph", "capture", "calls"),
)
NVML = ("nvml", "mig", "monitor")
LIBRARIES = {"libcuda.so.1": ("cu", DRIVER), "libnvidia-ml.so.1": ("nvml", NVML)}
"""Which names a library exports, and the folders of the stand-in's sources that it is made of."""
PROC_ADDRESS = ("cuGetProcAddress", "cuGetProcAddress_v2")
# Roughly what a driver of CUDA 11.0 lacks.
SINCE_11_0 = (
    *PROC_ADDRESS,
    "cuDeviceGetUuid_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemPoolGetAttribute",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuLaunchKernelEx",
    "cuGraphMemAllocNodeGetParams",
    "cuDeviceGetGraphMemAttribute",
    "cuLibraryLoadData",
    "cuLibraryUnload",
)


def build(folder: Path, library: str, without: Sequence[str]) -> None:
    """The stand-in library without some of its functions."""
    names, folders = LIBRARIES[library]
    sources = [
        source
        for each in (*MACHINE, *folders)
        for source in (ROOT / "native/fakegpu/src" / each).glob("*.c")
    ]
    script = folder / f"{library}.map"
    hidden = "".join(f"{name}; " for name in without)
    script.write_text(f"{{ global: {names}*; local: {hidden} *; }};")
    subprocess.run(
        ["cc", "-shared", "-o", folder / library]
        + [FAKEGPU / f"{source.stem}.o" for source in sources]
        + [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        + ["-Wl,-Bsymbolic", "-pthread", "-ldl"],
        check=True,
        timeout=PATIENCE_S,
    )


def run(container: Container, folder: Path, level: str) -> list[str]:
    """Run a program to its end; return its lines on stderr."""
    container.limits(
        f"hami-limits 1\npolicy force\ndevice {CARDS[0]} memory_bytes {4 * MIB} core_percent 50\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=container.env(LIBCUDA_LOG_LEVEL=level, LD_LIBRARY_PATH=str(folder)),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return [line for line in done.stderr.splitlines() if "OOM" not in line]


CASES: dict[str, tuple[dict[str, Sequence[str]], str, str]] = {
    "no NVML": ({"libcuda.so.1": ()}, "2", "Warn.*no NVML .libnvidia-ml.so.1 is missing"),
    "NVML without processes": (
        {
            "libcuda.so.1": (),
            "libnvidia-ml.so.1": (
                "nvmlDeviceGetProcessUtilization",
                "nvmlDeviceGetComputeRunningProcesses_v3",
            ),
        },
        "2",
        "Warn.*NVML lacks nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetProcessUtilization",
    ),
    "a driver without cuGetProcAddress": (
        {"libcuda.so.1": PROC_ADDRESS, "libnvidia-ml.so.1": ()},
        "3",
        "Info.*the driver lacks cuGetProcAddress, cuGetProcAddress_v2 ",
    ),
    "a driver of CUDA 11.0": (
        {"libcuda.so.1": SINCE_11_0, "libnvidia-ml.so.1": ()},
        "2",
        "Warn.*the driver lacks cuDeviceGetUuid_v2, ",
    ),
}


@pytest.mark.parametrize(("libraries", "level", "expected"), CASES.values(), ids=CASES)
def test_what_is_missing_is_reported_in_one_line(
    container: Container,
    tmp_path: Path,
    libraries: dict[str, Sequence[str]],
    level: str,
    expected: str,
) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    for library, without in libraries.items():
        build(folder, library, without)
    lines = [line for line in run(container, folder, level) if "lacks" in line or "NVML" in line]
    assert len(lines) == 1
    assert re.search(expected, lines[0])
    below = run(container, folder, str(int(level) - 1))
    assert not [line for line in below if "lacks" in line or "NVML" in line]


def test_an_nvml_that_does_not_start_is_reported_in_one_line(container: Container) -> None:
    container.machine.settings["faults"] = [{"call": "nvmlInit", "result": 18, "times": 0}]
    container.machine.write()
    lines = run(container, FAKEGPU, "2")
    assert len(lines) == 1
    assert "no NVML (nvmlInit_v2 answers 18)" in lines[0]
    assert run(container, FAKEGPU, "1") == []


def test_a_complete_driver_is_not_worth_a_line(container: Container) -> None:
    assert run(container, FAKEGPU, "2") == []
