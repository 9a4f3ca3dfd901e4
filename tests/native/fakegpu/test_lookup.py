"""The stand-in driver answers lookups by name, version and flags, as a driver does."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.native.driver_calls import Request, hooks
from tests.native.machine import Machine

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


def answers(
    machine: Machine, compile_c: Callable[..., Path], asked: Sequence[Request], version: int
) -> list[str]:
    """The exported name that each request is answered with by such a driver; "-": none."""
    machine.settings["cuda_version"] = version
    machine.write()
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
    return done.stdout.split()


def test_every_altered_function_is_found_by_the_request_of_its_row(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    rows = {hook.request: hook.symbol for hook in hooks()}
    assert answers(machine, compile_c, list(rows), 13050) == list(rows.values())


def test_a_request_is_answered_with_the_newest_function_that_caller_and_driver_know(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    asked = [
        Request("cuMulticastBindMem", 13050, 0),
        Request("cuMulticastBindMem", 13000, 0),
        Request("cuMulticastBindMem", 12000, 0),
        Request("cuMemAllocAsync", 13050, 2),
        Request("cuMemcpyHtoD", 13050, 2),  # there is none for the thread's own stream
        Request("cuTexObjectCreate", 13050, 0),
    ]
    newest = ["cuMulticastBindMem_v2", "cuMulticastBindMem", "-"]
    others = ["cuMemAllocAsync_ptsz", "cuMemcpyHtoD_v2", "-"]
    assert answers(machine, compile_c, asked, 13050) == [*newest, *others]
    assert answers(machine, compile_c, asked[:1], 12080) == ["cuMulticastBindMem"]
