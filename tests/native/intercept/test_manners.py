"""A good guest: silent, and without any trace in programs that use no GPU."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.native.machine import FAKEGPU, MIB, Container
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
