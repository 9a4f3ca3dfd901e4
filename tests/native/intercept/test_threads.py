"""Threads that are cancelled, and forks while threads work: no thread waits forever."""

import select
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.native.machine import MIB, ROOT, Container, open_context

ABI = ROOT / "native/libvgpu/include"
Compile = Callable[..., Path]

PROLOGUE = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "cuda_abi.h"
#define MIB (1UL << 20)
static void *driver;
static int (*named(const char *name))() { return (int (*)())dlsym(driver, name); }
#define CALL(name, ...) (named(#name)(__VA_ARGS__))
#define MUST(name, ...) do { int r_ = CALL(name, __VA_ARGS__); \\
    if (r_ != 0) { fprintf(stderr, #name ": %d\\n", r_); exit(3); } } while (0)
static CUcontext context;
static void open_device(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(cuInit, 0);
    MUST(cuDevicePrimaryCtxRetain, &context, 0);
    MUST(cuCtxSetCurrent, context);
}
static void pause_ns(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }
"""

# Each thread is refused, again and again, which looks for dead processes in /proc and locks the
# region's file; it is cancelled somewhere in there.
CANCELLED = (
    PROLOGUE
    + """
static void *refused(void *nothing)
{
    CUdeviceptr block;
    CALL(cuCtxSetCurrent, context);
    for (;;) {
        CALL(cuMemAlloc_v2, &block, MIB);
        pthread_testcancel();
    }
    return nothing;
}
int main(void)
{
    CUdeviceptr held, block;
    open_device();
    MUST(cuMemAlloc_v2, &held, 10 * MIB);
    srand(1);
    for (int i = 0; i < 400; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, refused, NULL);
        pause_ns(rand() % 2000000);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        if (CALL(cuMemAlloc_v2, &block, MIB) != 2) return 4;
    }
    MUST(cuMemFree_v2, held);
    MUST(cuMemAlloc_v2, &block, 10 * MIB);
    puts("done");
    fflush(stdout);
    getchar();
    return 0;
}
"""
)


def test_cancelled_threads_leave_no_lock_behind(container: Container, compile_c: Compile) -> None:
    container.limit(11 * MIB)
    other = open_context(container.start())  # refused threads look up whether it is alive
    assert other.alloc(MIB)[0] == 0
    program = subprocess.Popen(
        [compile_c(CANCELLED, "-w", f"-I{ABI}", "-ldl", "-pthread")],
        env=container.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout
        assert within(program, 120) == "done\n"
        # Another process of the container gets the file's lock.
        assert open_context(container.start()).info() == (0, 11 * MIB)
        assert program.communicate("\n", timeout=30) is not None
        assert program.returncode == 0
    finally:
        program.kill()
        program.communicate()


def within(program: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a program that may hang."""
    assert program.stdout
    readable, _, _ = select.select([program.stdout], [], [], seconds)
    assert readable, "the program hangs"
    return program.stdout.readline()


# A driver without state and without locks: a thread that hangs, hangs in the library.
STATELESS = """
#include <string.h>
#include "cuda_abi.h"
#define ANSWER(name, ...) int name(__VA_ARGS__)
ANSWER(cuInit, unsigned f) { return 0; }
ANSWER(cuDeviceGetCount, int *n) { return *n = 1, 0; }
ANSWER(cuDeviceGet, int *d, int i) { return *d = i, 0; }
ANSWER(cuDeviceGetUuid_v2, char *u, int d) { return memset(u, 7, 16), 0; }
ANSWER(cuDevicePrimaryCtxRetain, void **c, int d) { return *c = (void *)64, 0; }
ANSWER(cuCtxSetCurrent, void *c) { return 0; }
ANSWER(cuCtxGetCurrent, void **c) { return *c = (void *)64, 0; }
ANSWER(cuCtxGetDevice, int *d) { return *d = 0, 0; }
ANSWER(cuMemCreate, unsigned long long *h, unsigned long n, void *p, unsigned long long f)
{
    static _Atomic unsigned long long last;
    return *h = ++last, 0;
}
ANSWER(cuMemRelease, unsigned long long h) { return 0; }
ANSWER(cuMemUnmap, unsigned long long p, unsigned long n) { return 0; }
ANSWER(cuArrayDestroy, void *a) { return 0; }
ANSWER(cuMipmappedArrayDestroy, void *a) { return 0; }
ANSWER(cuGraphInstantiateWithFlags, void **e, void *g, unsigned long long f)
{
    return *e = (void *)128, 0;
}
ANSWER(cuGraphGetNodes, void *g, void **nodes, unsigned long *n) { return *n = 1, 0; }
ANSWER(cuGraphNodeGetType, void *n, int *type)
{
    return *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0;
}
ANSWER(cuGraphMemAllocNodeGetParams, void *n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    memset(p, 0, sizeof *p);
    p->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p->bytesize = 4096, 0;
}
ANSWER(cuDeviceGetGraphMemAttribute, int d, int a, unsigned long long *v) { return *v = 0, 0; }
ANSWER(cuGraphUpload, void *e, void *s) { return 0; }
ANSWER(cuGraphExecDestroy, void *e) { return 0; }
"""

# The first call of each child takes a lock and needs nothing else.
FORKED = (
    PROLOGUE
    + """
static void *physical(void *nothing)
{
    for (;;) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp wanted = {.type = 1, .location = {.type = 1, .id = 0}};
        if (CALL(cuMemCreate, &handle, 2 * MIB, &wanted, 0ULL) == 0) CALL(cuMemRelease, handle);
    }
    return nothing;
}
static void *graphs(void *nothing)
{
    CUgraphExec exec;
    for (;;) {
        MUST(cuGraphInstantiateWithFlags, &exec, (void *)256, 0ULL);
        CALL(cuGraphUpload, exec, NULL);
        MUST(cuGraphExecDestroy, exec);
    }
    return nothing;
}
static void child(const char *call)
{
    alarm(30);
    if (strcmp(call, "cuMemUnmap") == 0) CALL(cuMemUnmap, (CUdeviceptr)1 << 40, 2 * MIB);
    else named(call)((void *)0x1234560);
    _exit(0);
}
int main(int count, char **argument)
{
    pthread_t threads[6];
    int stuck = 0;
    open_device();
    for (int i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, i < 3 ? physical : graphs, NULL);
    for (int i = 0; i < 150; i++) {
        const char *call = argument[1 + i % (count - 1)];
        pause_ns(rand() % 300000);
        int status;
        const pid_t one = fork();
        if (one == 0) child(call);
        waitpid(one, &status, 0);
        if (!WIFEXITED(status)) {
            fprintf(stderr, "%s: ended by %d\\n", call, WTERMSIG(status));
            if (++stuck == 2) break;
        }
    }
    _exit(stuck);
}
"""
)
FIRST_CALLS = (
    "cuMemRelease",
    "cuMemUnmap",
    "cuArrayDestroy",
    "cuMipmappedArrayDestroy",
    "cuGraphExecDestroy",
)


def test_a_child_that_was_forked_beside_busy_threads_goes_on(
    container: Container, compile_c: Compile, tmp_path: Path
) -> None:
    container.limits(
        "hami-limits 1\ndevice GPU-07070707-0707-0707-0707-070707070707"
        f" memory_bytes {1000 * MIB} core_percent 0\n"
    )
    driver = tmp_path / "driver"
    driver.mkdir()
    compile_c(STATELESS, "-w", f"-I{ABI}", "-shared", "-fPIC", name="driver/libcuda.so.1")
    program = compile_c(FORKED, "-w", f"-I{ABI}", "-ldl", "-pthread")
    done = subprocess.run(
        [program, *FIRST_CALLS],
        env=container.env(LD_LIBRARY_PATH=str(driver)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
