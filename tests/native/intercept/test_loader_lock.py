"""A library's constructor runs with the dynamic linker's lock, and may use the driver: no thread
of ours waits for that lock while others wait for it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.native.intercept.test_threads import ABI, PROLOGUE
from tests.native.machine import LIBVGPU, Container
from tests.waiting import PATIENCE_S

# Main's first cuInit starts the library, which looks for NVML.
CONSTRUCTOR = """
#include <dlfcn.h>
#include <unistd.h>
extern int main_sleeps(void);
__attribute__((constructor)) static void use_driver(void)
{
    int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(RTLD_DEFAULT, "cuInit");
    while (!main_sleeps()) usleep(1000);
    if (init(0) != 0) _exit(4);
}
"""
MAIN = (
    PROLOGUE
    + """
#include <stdatomic.h>
#include <sys/syscall.h>
static _Atomic int entered, calls;
/* Whether main has been asleep in its call for a while: then it waits for the linker's lock. */
int main_sleeps(void)
{
    static int looks;
    char path[64], line[256] = "";
    entered = 1;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    FILE *file = fopen(path, "r");
    fgets(line, sizeof line, file);
    fclose(file);
    looks = calls && strstr(line, ") S") != NULL ? looks + 1 : 0;
    return looks > 100;
}
static void *load(void *library) { return dlopen(library, RTLD_NOW); }
int main(int count, char **arguments)
{
    pthread_t thread;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CALL(cuCtxSetCurrent, NULL);
    int (*init)() = named("cuInit");
    pthread_create(&thread, NULL, load, arguments[count - 1]);
    while (!entered) pause_ns(1000);
    calls = 1;
    if (init(0) != 0) return 3;
    pthread_join(thread, NULL);
    return 0;
}
"""
)


def test_a_constructor_that_uses_the_driver_beside_main_comes_to_its_end(
    container: Container, compile_c: Callable[..., Path]
) -> None:
    library = compile_c(CONSTRUCTOR, "-w", "-shared", "-fPIC", name="constructor.so")
    program = compile_c(MAIN, "-w", f"-I{ABI}", "-rdynamic", "-ldl", "-pthread")
    done = subprocess.run(
        [program, library],
        # Without the mapping of paths, which looks functions up inside the driver's cuInit.
        env=container.env(CUDA_DEVICE_MEMORY_LIMIT="100m", LD_PRELOAD=str(LIBVGPU)),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0
