"""The library is silent and leaves no trace, also in constructors and with closed descriptors."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.intercept.test_threads import ABI, PROLOGUE
from tests.native.machine import FAKEGPU, LIBVGPU, MIB, Container, is_locked
from tests.waiting import PATIENCE_S

SCRIPT = """
import os, signal, sys
before = [signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGUSR2)]
mask = os.umask(0o27); os.umask(mask)
maps = open("/proc/self/maps").read()
print(oct(mask), before, [name in maps for name in ("libcuda", "nvidia", "region.cache")])
print(sorted(os.listdir("/proc/self/fd")))
"""


def test_a_program_without_cuda_is_untouched(container: Container) -> None:
    container.limit(10 * MIB)

    def run(env: dict[str, str]) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return done.stdout, done.stderr

    assert run(container.env()) == run(container.machine.env())
    assert not container.region.exists()


def test_nothing_is_printed_unless_asked_for(container: Container) -> None:
    container.limit(MIB)
    done = subprocess.run(
        [FAKEGPU / "vgpu-probe", "--once"],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr == ""


def test_errors_are_printed_when_asked_for_in_the_wording_of_hami(container: Container) -> None:
    container.limit(MIB)
    done = subprocess.run(
        [FAKEGPU / "vgpu-probe", "--once"],
        env=container.env(LIBCUDA_LOG_LEVEL="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert f"Device 0 OOM {MIB + 1} / {MIB}" in done.stderr
    assert "HAMi-core ERROR" in done.stderr


def test_a_cuda_program_keeps_its_umask_and_signal_handlers(
    container: Container, compile_c: Callable[..., Path]
) -> None:
    source = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <signal.h>
    #include <stdio.h>
    #include <sys/stat.h>
    static void handler(int number) { (void)number; }
    int main(void)
    {
        struct sigaction one, two;
        signal(SIGUSR1, handler);
        umask(027);
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
        int result = init(0);
        sigaction(SIGUSR1, NULL, &one);
        sigaction(SIGUSR2, NULL, &two);
        printf("%d %o %d %d\n", result, umask(0), one.sa_handler == handler,
               two.sa_handler == SIG_DFL);
        return 0;
    }
    """
    container.limit(MIB)
    done = subprocess.run(
        [compile_c(source, "-ldl")],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "0 27 1 1\n"
    assert container.region.stat().st_mode & 0o777 == 0o666


def test_a_missing_driver_is_the_programs_own_affair(container: Container) -> None:
    script = "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError: print('none')"
    env = container.env() | {"LD_LIBRARY_PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("none\n", "")


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


OUT_OF_MEMORY = 2


@pytest.mark.parametrize("reused", [False, True], ids=["number free", "number reused"])
def test_the_lock_of_the_region_survives_a_program_that_closes_everything(
    container: Container, tmp_path: Path, reused: bool
) -> None:
    container.limit(10 * MIB)
    client, other = container.start(), container.start()
    for one in (client, other):
        assert one.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    assert other.alloc(9 * MIB)[0] == 0
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x")
    files = client.call("close_descriptors", path=str(theirs) if reused else None)["files"]
    assert bool(files) == reused
    # Refused: the library looks for the dead, with the lock of the region, and finds none.
    assert client.alloc(2 * MIB)[0] == OUT_OF_MEMORY
    assert is_locked(theirs) == reused  # unlocking ours would have dropped the program's own lock
    other.kill()
    assert client.alloc(9 * MIB)[0] == 0
    assert client.info() == (0, 10 * MIB)
    assert is_locked(theirs) == reused


def test_the_files_of_a_forked_child_are_not_closed(container: Container, tmp_path: Path) -> None:
    container.limit(10 * MIB)
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x")
    files = client.call("close_descriptors", path=str(theirs))["files"]
    # The child closes what it inherited of the region, but not the program's files.
    child = client.call("fork_and_alloc", bytes=MIB)
    assert (child["result"], child["files_open"]) == (0, len(files))
    assert client.alloc(9 * MIB)[0] == 0
    assert is_locked(theirs)


def test_a_region_that_was_replaced_is_not_locked_for_another(
    container: Container, tmp_path: Path
) -> None:
    container.limit(10 * MIB)
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    client.call("close_descriptors", path=None)
    container.region.unlink()
    container.region.write_bytes(b"")
    assert client.alloc(10 * MIB)[0] == OUT_OF_MEMORY
    assert client.alloc(9 * MIB)[0] == 0
    assert container.region.stat().st_size == 0
