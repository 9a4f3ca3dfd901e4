"""However a program finds a function, it gets ours where we alter it, else the driver's own."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.machine import FAKEGPU, LIBVGPU, MIB, Client, Container
from tests.waiting import PATIENCE_S

OUT_OF_MEMORY = 2

# (name, version, flags) as the CUDA runtime asks, and whether the answer must be ours.
REQUESTS = [
    "cuInit 2000 0 ours",
    "cuGetProcAddress 11030 0 ours",
    "cuGetProcAddress 12000 0 ours",
    "cuDeviceGet 2000 0 driver",
    "cuDeviceGetCount 2000 0 driver",
    "cuDeviceTotalMem 3020 0 ours",
    "cuDeviceGetAttribute 2000 0 driver",
    "cuDeviceGetUuid 9020 0 driver",
    "cuDeviceGetUuid 11040 0 driver",
    "cuDevicePrimaryCtxRetain 7000 0 ours",
    "cuDevicePrimaryCtxRelease 7000 0 ours",
    "cuDevicePrimaryCtxRelease 11000 0 ours",
    "cuDevicePrimaryCtxReset 7000 0 ours",
    "cuCtxDestroy 4000 0 ours",
    "cuCtxGetDevice 2000 0 driver",
    "cuMemAlloc 3020 0 ours",
    "cuMemAlloc 12080 0 ours",
    "cuMemAlloc 2000 0 none",
    "cuMemFree 3020 0 ours",
    "cuMemGetInfo 3020 0 ours",
    "cuMemAllocPitch 3020 0 ours",
    "cuMemAllocManaged 6000 0 ours",
    "cuMemAllocAsync 11020 0 ours",
    "cuMemAllocAsync 11020 2 ours",
    "cuMemAllocFromPoolAsync 11020 2 ours",
    "cuMemFreeAsync 11020 2 ours",
    "cuMemCreate 10020 0 ours",
    "cuMemRelease 10020 0 ours",
    "cuLaunchKernel 4000 0 ours",
    "cuLaunchKernel 7000 2 ours",
    "cuLaunchKernelEx 11060 2 ours",
    "cuStreamSynchronize 2000 0 ours",
    "cuStreamSynchronize 7000 2 ours",
    "cuStreamQuery 2000 0 driver",
    "cuGetErrorString 6000 0 driver",
    "cuNoSuchFunction 2000 0 none",
    "- 0 0 none",
]

REPLAY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*get_v1)(const char *, void **, int, uint64_t);
static const char *owner(void *address)
{
    Dl_info info;
    if (address == NULL) return "none";
    if (!dladdr(address, &info)) return "unknown";
    if (strstr(info.dli_fname, "libvgpu.so")) return "ours";
    return strstr(info.dli_fname, "libcuda") ? "driver" : info.dli_fname;
}
int main(void)
{
    char name[64];
    int version, flags;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    get_v2 two = (get_v2)dlsym(library, "cuGetProcAddress_v2");
    get_v1 one = (get_v1)dlsym(library, "cuGetProcAddress");
    while (scanf("%63s %d %d %*s", name, &version, &flags) == 3) {
        void *a = (void *)1, *b = (void *)1;
        int status = -1, result = two(name[0] == '-' ? "" : name, &a, version, flags, &status);
        one(name[0] == '-' ? "" : name, &b, version, flags);
        printf("%s %d %d %s%s%s\n", name, version, flags, owner(a), a == b ? "" : " v1-differs",
               (result == 0) == (a != NULL) ? "" : " result-differs");
    }
    return 0;
}
"""


def open_context(client: Client) -> Client:
    assert client.call("open_device") == {"result": 0}
    return client


def run(program: Path, env: dict[str, str], text: str = "") -> str:
    result = subprocess.run(
        [program],
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout


def test_requests_of_the_cuda_runtime_are_answered_by_version_and_flags(
    container: Container, compile_c: Callable[..., Path]
) -> None:
    answer = run(compile_c(REPLAY, "-ldl"), container.env(), "\n".join(REQUESTS))
    assert answer.splitlines() == REQUESTS


@pytest.mark.parametrize("proc_address", [False, True])
def test_a_function_found_either_way_is_limited(container: Container, proc_address: bool) -> None:
    container.limit(MIB)
    client = open_context(container.start())
    assert client.alloc(MIB + 1, proc_address=proc_address)[0] == OUT_OF_MEMORY
    assert client.alloc(MIB, proc_address=proc_address)[0] == 0


LINKED = r"""
#include <stdio.h>
#include <stdint.h>
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t); int cuMemGetInfo_v2(size_t *, size_t *);
int main(void)
{
    void *context; uint64_t pointer = 7; size_t free_bytes, total;
    cuInit(0); cuDevicePrimaryCtxRetain(&context, 0); cuCtxSetCurrent(context);
    int refused = cuMemAlloc_v2(&pointer, (1 << 20) + 1);
    cuMemGetInfo_v2(&free_bytes, &total);
    printf("%d %d %zu\n", refused, (int)pointer, total);
    return 0;
}
"""


def test_a_program_linked_with_the_driver_is_limited(
    container: Container, compile_c: Callable[..., Path]
) -> None:
    container.limit(MIB)
    program = compile_c(LINKED, f"-L{FAKEGPU}", "-l:libcuda.so.1")
    assert run(program, container.env()) == f"2 7 {MIB}\n"


LOOKUPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static const char *owner(void *address)
{
    Dl_info info;
    if (address == NULL || !dladdr(address, &info)) return "none";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}
int main(void)
{
    printf("default before %s\n", owner(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    dlerror();
    printf("handle %s\n", owner(dlsym(library, "cuMemAlloc_v2")));
    printf("error %s\n", dlerror() ? "yes" : "no");
    printf("again %s\n", owner(dlsym(library, "cuMemAlloc_v2")));
    printf("default %s\n", owner(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    printf("other %s\n", owner(dlsym(library, "cuDeviceGet")));
    printf("absent %s\n", owner(dlsym(library, "cuMemAlloc_v9")));
    printf("absent error %s\n", dlerror() ? "yes" : "no");
    printf("foreign %s\n", owner(dlsym(dlopen("libm.so.6", RTLD_NOW), "cuMemAlloc_v2")));
    printf("cu prefix %s\n", owner(dlsym(dlopen("libm.so.6", RTLD_NOW), "cbrt")));
    printf("dlsym %s\n", owner(dlsym(RTLD_DEFAULT, "dlsym")));
    printf("versioned %s\n", owner(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5")));
    return 0;
}
"""


def test_lookups_keep_their_meaning(container: Container, compile_c: Callable[..., Path]) -> None:
    lines = run(compile_c(LOOKUPS, "-ldl"), container.env()).splitlines()
    assert lines == [
        "default before none",
        "handle libvgpu.so",
        "error no",
        "again libvgpu.so",
        "default libvgpu.so",
        "other libcuda.so.1",
        "absent none",
        "absent error yes",
        "foreign none",
        "cu prefix libm.so.6",
        "dlsym libvgpu.so",
        "versioned libvgpu.so",
    ]


NEXT_OF_CALLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int answer(void) { return 1; }
int main(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "answer");
    printf("%d\n", next ? next() : -1);
    return 0;
}
"""


def test_rtld_next_is_relative_to_the_caller(
    container: Container, compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    library = compile_c(
        "int answer(void); int answer(void) { return 2; }", "-shared", "-fPIC", name="first"
    )
    program = compile_c(NEXT_OF_CALLER, "-rdynamic", "-ldl", library)
    env = container.env()
    # The library stands before libvgpu: relative to libvgpu there is no next one.
    env["LD_PRELOAD"] = f"{library}:{LIBVGPU}"
    assert run(program, env) == "2\n"
