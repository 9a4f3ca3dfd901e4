"""Every driver function of CUDA 13, requested as the CUDA runtimes do.

The driver here is a list of functions that record their calls and arguments. A caller that asks
for a version and flags gets exactly the function of that version and flags: the driver's own
address, or ours, which passes the arguments to that function unchanged.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.native.driver_calls import DATA, Request, hooks, requests
from tests.native.machine import LIBVGPU
from tests.waiting import PATIENCE_S

PARAMETERS = 11  # of the longest parameter list

DRIVER = (DATA / "noting_driver.c").read_text()
PROGRAM = (DATA / "ask.c").read_text()

# The lookup itself is answered by the lookup.
LOOKUP = "cuGetProcAddress"
# Asks the driver with its own outputs, so that a caller may omit one.
OWN_OUTPUTS = "cuMemGetInfo"


def test_every_function_is_the_one_that_was_asked_for(
    compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    asked = sorted(set(requests("driver-calls.txt")))
    altered = {hook.request: hook for hook in hooks()}
    assert set(altered) <= set(asked)

    def kinds(request: Request) -> str:
        return altered[request].parameters if request in altered else "p" * PARAMETERS

    stubs = "\n".join(f"STUB({i})" for i in range(len(asked)))
    rows = "\n".join(
        f'{{"{r.name}", {r.version}, {r.flags}, '
        + ("0" if r.name == LOOKUP else f"(void *)stub_{i}")
        + "},"
        for i, r in enumerate(asked)
    )
    source = DRIVER.replace("@STUBS@", stubs).replace("@ROWS@", rows)
    for version, symbol in ((11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")):
        source = source.replace(
            f'{{"{LOOKUP}", {version}, 0, 0}}', f'{{"{LOOKUP}", {version}, 0, (void *){symbol}}}'
        )
    driver = compile_c(source, "-shared", "-fPIC", "-Wl,-Bsymbolic", name="libcuda.so.1")
    lines = [
        f"{r.name} {r.version} {r.flags} {i} {int(r.name != LOOKUP)} "
        + str(0 if r.name == OWN_OUTPUTS else len(kinds(r)))
        + f" {kinds(r) or '-'}"
        for i, r in enumerate(asked)
    ]
    done = subprocess.run(
        [compile_c(PROGRAM, "-ldl")],
        env={
            "LD_LIBRARY_PATH": str(driver.parent),
            "LD_PRELOAD": str(LIBVGPU),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
        },
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{i} {'ours' if r in altered else 'driver'} exact" for i, r in enumerate(asked)
    ]


def test_the_runtimes_ask_for_857_functions_all_of_which_are_in_that_list() -> None:
    runtime = requests("runtime-requests.txt")
    assert sum(len(releases) for releases in runtime.values()) == 857
    assert set(runtime) <= set(requests("driver-calls.txt"))


def test_per_thread_streams_are_altered_wherever_the_legacy_stream_is() -> None:
    known = set(requests("driver-calls.txt"))
    altered = {hook.request for hook in hooks()}
    for request in altered:
        variants = {r for r in known if r.name == request.name and r.flags == 2}
        assert variants <= altered, f"{request.name} is altered for the legacy stream alone"
    assert Request("cuLaunchKernel", 7000, 2) in altered
