"""A driver may hand a number out again before the call that ended its owner has returned."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.machine import MIB, ROOT, Container

ABI = ROOT / "native/libvgpu/include"

# One context, one pool, and addresses that begin again with each: in the middle of their end the
# program goes on, as another thread would.
DRIVER = """
#include <string.h>
#include "cuda_abi.h"
#define ANSWER(name, ...) int name(__VA_ARGS__)
void (*in_between)(void);
static unsigned long long next = 1 << 21, kept;
static void go_on(void)
{
    void (*now)(void) = in_between;
    in_between = 0;
    if (REUSE_ADDRESSES) next = 1 << 21;
    if (now) now();
}
static int give(unsigned long long *p, unsigned long n)
{
    return *p = next, next += n, 0;
}
ANSWER(cuInit, unsigned f) { return 0; }
ANSWER(cuDeviceGetCount, int *n) { return *n = 1, 0; }
ANSWER(cuDeviceGet, int *d, int i) { return *d = i, 0; }
ANSWER(cuDeviceGetUuid_v2, char *u, int d) { return memset(u, 7, 16), 0; }
ANSWER(cuCtxCreate_v2, void **c, unsigned f, int d) { return *c = (void *)64, 0; }
ANSWER(cuCtxDestroy_v2, void *c) { return go_on(), 0; }
ANSWER(cuCtxGetCurrent, void **c) { return *c = (void *)64, 0; }
ANSWER(cuCtxGetDevice, int *d) { return *d = 0, 0; }
ANSWER(cuMemAlloc_v2, unsigned long long *p, unsigned long n) { return give(p, n); }
ANSWER(cuMemFree_v2, unsigned long long p) { return 0; }
ANSWER(cuMemGetInfo_v2, unsigned long *f, unsigned long *t) { return *f = *t = 1UL << 30, 0; }
ANSWER(cuEventCreate, void **e, unsigned f) { return *e = (void *)160, 0; }
ANSWER(cuEventRecord, void *e, void *s) { return 0; }
ANSWER(cuEventQuery, void *e) { return 0; }
ANSWER(cuEventSynchronize, void *e) { return 0; }
ANSWER(cuStreamIsCapturing, void *s, int *status) { return *status = 0, 0; }
ANSWER(cuDeviceGetDefaultMemPool, void **p, int d) { return *p = (void *)96, 0; }
ANSWER(cuMemPoolCreate, void **p, void *props) { return *p = (void *)128, 0; }
ANSWER(cuMemPoolDestroy, void *p) { return go_on(), 0; }
ANSWER(cuMemPoolSetAttribute, void *p, int a, void *v) { return 0; }
ANSWER(cuMemPoolGetAttribute, void *p, int a, unsigned long long *v) { return *v = 10 << 20, 0; }
ANSWER(cuMemPoolTrimTo, void *p, unsigned long keep) { return 0; }
ANSWER(cuMemAllocFromPoolAsync, unsigned long long *p, unsigned long n, void *pool, void *s)
{
    return give(p, n);
}
ANSWER(cuMemFreeAsync, unsigned long long p, void *s) { return 0; }
"""

PROLOGUE = """
#include <dlfcn.h>
#include <stdio.h>
#include "cuda_abi.h"
#define MIB (1UL << 20)
#define CALL(name, ...) (((int (*)())dlsym(driver, #name))(__VA_ARGS__))
static void *driver;
static void (**in_between)(void);
static CUdeviceptr block;
static void print_free(void)
{
    size_t free_bytes, total;
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
    printf("%zu ", free_bytes / MIB);
}
static void begin(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    in_between = dlsym(driver, "in_between");
    CALL(cuInit, 0);
}
"""

CONTEXTS = (
    PROLOGUE
    + """
static CUcontext context;
static void again(void)
{
    CALL(cuCtxCreate_v2, &context, 0, 0);
    CALL(cuMemAlloc_v2, &block, 10 * MIB);
}
int main(void)
{
    begin();
    again();
    *in_between = again;
    CALL(cuCtxDestroy_v2, context);
    print_free();
    printf("%d ", CALL(cuMemAlloc_v2, &block, 11 * MIB));
    CALL(cuCtxDestroy_v2, context);
    print_free();
    return 0;
}
"""
)

POOLS = (
    PROLOGUE
    + """
static CUmemoryPool pool;
static void again(void)
{
    CUmemPoolProps wanted = {.allocType = 1, .location = {.type = 1}};
    cuuint64_t all = ~0ULL;
    CALL(cuMemPoolCreate, &pool, &wanted);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    CALL(cuMemAllocFromPoolAsync, &block, 10 * MIB, pool, NULL);
    CALL(cuMemFreeAsync, block, NULL);
}
int main(void)
{
    begin();
    again();
    *in_between = again;
    CALL(cuMemPoolDestroy, pool);
    print_free();
    printf("%d ", CALL(cuMemAllocFromPoolAsync, &block, 21 * MIB, pool, NULL));
    CALL(cuMemPoolDestroy, pool);
    print_free();
    return 0;
}
"""
)


@pytest.mark.parametrize("reuse_addresses", [0, 1])
@pytest.mark.parametrize("program", [CONTEXTS, POOLS], ids=["contexts", "pools"])
def test_what_was_made_before_the_end_returns_stays_charged(
    container: Container,
    compile_c: Callable[..., Path],
    tmp_path: Path,
    program: str,
    reuse_addresses: int,
) -> None:
    container.limits(
        "hami-limits 1\ndevice GPU-07070707-0707-0707-0707-070707070707"
        f" memory_bytes {20 * MIB} core_percent 0\n"
    )
    (tmp_path / "driver").mkdir()
    options = ("-w", f"-I{ABI}")
    compile_c(
        DRIVER,
        *options,
        f"-DREUSE_ADDRESSES={reuse_addresses}",
        "-shared",
        "-fPIC",
        name="driver/libcuda.so.1",
    )
    done = subprocess.run(
        [compile_c(program, *options, "-ldl")],
        env=container.env(LD_LIBRARY_PATH=str(tmp_path / "driver")),
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Free beside the new one's ten; more is refused; all free after its end.
    assert (done.returncode, done.stdout.split()) == (0, ["10", "2", "20"]), done
