"""The stand-in driver answers what CUDA's runtimes look up, each version with its own function."""

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.native.driver_calls import Request, requests
from tests.native.machine import FAKEGPU, ROOT, Machine

# What a runtime looks up and does not find here; docs/fakegpu.md explains why. By subject.
ABSENT = {
    "graphs beyond kernels, memory, copies, fills, host functions and children": (
        r"cuGraph(AddDependencies|AddEvent\w+|AddExternal\w+|Clone|Conditional\w+|DebugDotPrint|"
        r"DestroyNode|Event\w+|Exec(?!Destroy)\w+|External\w+|GetEdges|GetRootNodes|HostNode\w+|"
        r"KernelNode(?!GetParams)\w+|MemFreeNodeGetParams|Memcpy\w+|Memset\w+|"
        r"NodeFindInClone|NodeGetDepend\w+|NodeGetEnabled|NodeSet\w+|\w*UserObject|"
        r"RemoveDependencies)|cuUserObject\w+"
    ),
    "captures across streams": (
        r"cuStream(BeginCaptureToGraph|GetCaptureInfo|UpdateCaptureDependencies)"
    ),
    "textures, surfaces, mipmap levels and what arrays need": (
        r"cu(Tex|Surf)Object\w+|cuModuleGet(Surf|Tex)Ref|cuArrayGet(Memory|Plane|Sparse)\w*|"
        r"cuMipmappedArrayGet\w+|cuExternalMemoryGetMappedMipmappedArray|"
        r"cuDeviceGetTexture1DLinearMaxWidth"
    ),
    "linking, symbols and parameters of code that is not compiled": (
        r"cuLink\w+|cuModuleGetGlobal|cuLibrary(Enumerate|Get(Global|KernelCount|Managed|Unified))"
        r"\w*|cu(Func|Kernel)GetParamInfo|cuOccupancyMax(ActiveClusters|PotentialClusterSize)"
    ),
    "semaphores of other interfaces": r"cu\w*ExternalSemaphore\w*",
    "events of other processes": r"cuIpc(Get|Open)EventHandle",
    "attributes of streams, logs, notifications, old profiling": (
        r"cuStream(Copy|Get|Set)Attribute\w*|cuLogs\w+|cuDevice\w+AsyncNotification|"
        r"cuProfilerInitialize"
    ),
    "managed memory by batches and ranges, access of pools, CUDA 13 places and atomics": (
        r"cuMem(Discard\w+|PrefetchBatchAsync|RangeGet\w+|PoolGetAccess|PoolSetAccess|"
        r"GetDefaultMemPool|GetMemPool|SetMemPool)|cuDeviceGet\w+AtomicCapabilities|"
        r"cuDeviceSetGraphMemAttribute"
    ),
}

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


def answers(machine: Machine, compile_c: Callable[..., Path]) -> dict[Request, str]:
    """The exported name that each request of the runtimes is answered with; "-": none."""
    machine.settings["cuda_version"] = 13000
    machine.write()
    asked = sorted(requests("runtime-requests.txt"))
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
    return dict(zip(asked, done.stdout.split(), strict=True))


def reason(name: str) -> str | None:
    return next((why for why, names in ABSENT.items() if re.fullmatch(names, name)), None)


def test_every_lookup_of_the_runtimes_is_answered_or_is_on_the_list_of_what_is_not_there(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    found = answers(machine, compile_c)
    missing = {request.name for request, symbol in found.items() if symbol == "-"}
    assert sorted(name for name in missing if reason(name) is None) == []
    there = {request.name for request, symbol in found.items() if symbol != "-"}
    assert sorted(name for name in there if reason(name) is not None) == []


def test_each_version_and_stream_of_a_call_has_a_function_of_its_own(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    by_symbol: dict[str, list[Request]] = {}
    for request, symbol in answers(machine, compile_c).items():
        if symbol != "-":
            by_symbol.setdefault(symbol, []).append(request)
            # The name shows which it is: cuMemcpy2DAsync_v2_ptsz.
            suffix = symbol.removeprefix(request.name)
            assert re.fullmatch(r"(_v\d)?(_pt[sd][sz])?", suffix), (request, symbol)
            assert (request.flags == 2) == ("_pt" in suffix), (request, symbol)
    shared = {symbol: asked for symbol, asked in by_symbol.items() if len(asked) > 1}
    assert shared == {}


def test_what_other_interfaces_would_be_needed_for_is_not_supported() -> None:
    table = (ROOT / "native/fakegpu/src/driver_refused.def").read_text()
    names = re.findall(r"^REFUSED\((\w+)", table, re.MULTILINE)
    driver = ctypes.CDLL(str(FAKEGPU / "libcuda.so.1"))
    assert len(names) > 30
    # Not initialised comes first, as everywhere.
    assert {getattr(driver, name)(*[None] * 6) for name in names} == {3}
