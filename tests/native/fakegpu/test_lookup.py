"""The stand-in driver answers what CUDA's runtimes look up, each version with its own function."""

import ctypes
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.native.driver_calls import Request, requests
from tests.native.machine import FAKEGPU, ROOT, Machine

# How many functions each runtime looks up; all of them are found.
LOOKED_UP = {"12.8": 418, "13.0": 439}

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


def test_every_lookup_of_the_runtimes_finds_a_function(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    found = answers(machine, compile_c)
    assert sorted(request for request, symbol in found.items() if symbol == "-") == []
    asked = Counter(release for by in requests("runtime-requests.txt").values() for release in by)
    assert asked == LOOKED_UP


def test_each_version_and_stream_of_a_call_has_a_function_of_its_own(
    machine: Machine, compile_c: Callable[..., Path]
) -> None:
    by_symbol: dict[str, list[Request]] = {}
    for request, symbol in answers(machine, compile_c).items():
        if symbol != "-":
            by_symbol.setdefault(symbol, []).append(request)
            # Their names differ: cuMemcpy2DAsync_v2_ptsz.
            suffix = symbol.removeprefix(request.name)
            assert re.fullmatch(r"(_v\d)?(_pt[sd][sz])?", suffix), (request, symbol)
            assert (request.flags == 2) == ("_pt" in suffix), (request, symbol)
    shared = {symbol: asked for symbol, asked in by_symbol.items() if len(asked) > 1}
    assert shared == {}


def test_what_other_interfaces_would_be_needed_for_is_not_supported() -> None:
    table = (ROOT / "native/fakegpu/src/signatures/refused.def").read_text()
    names = re.findall(r"^REFUSED\((\w+)", table, re.MULTILINE)
    driver = ctypes.CDLL(str(FAKEGPU / "libcuda.so.1"))
    assert len(names) > 30
    # Not initialised comes first, as everywhere.
    assert {getattr(driver, name)(*[None] * 6) for name in names} == {3}
