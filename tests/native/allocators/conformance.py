"""Measure each way of taking device memory under libvgpu, on the stand-in driver.

Run as a program (`python -m tests.native.allocators.conformance`) it writes
native/libvgpu/CONFORMANCE.md; `test_memory_kinds.py` measures every way that is listed there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.native.allocators.allocators import KINDS
from tests.native.cuda_headers import cuda_version, headers
from tests.native.driver_calls import hooks, nvml_altered, nvml_functions, requests
from tests.native.machine import MIB, ROOT, Client, Container, Machine

DOCUMENT = ROOT / "native/libvgpu/CONFORMANCE.md"

LIMIT = 12 * MIB
SIZE = 8 * MIB
OUT_OF_MEMORY = 2


@dataclass(frozen=True)
class Verdict:
    """counted: to the byte; limited: refused beyond the limit with the card untouched; freed:
    nothing stays charged; shared: another process of the container sees it and is refused."""

    counted: bool
    limited: bool
    freed: bool
    shared: bool


# Found in the symbols of libcuda.so.580.159.04: cuGetProcAddress is not asked for them.
WITHOUT_HEADER = ("cuEGLApiInit", "cuMemGetAttribute")

HELD = Verdict(counted=True, limited=True, freed=True, shared=True)


def take(client: Client, kind: str, size: int) -> tuple[int, int]:
    answer = client.call("take", kind=kind, bytes=size)
    return int(answer["result"]), int(answer["token"])


def give_back(client: Client, token: int) -> bool:
    """Ended, and waited for the device: pools let go of nothing before."""
    ended = client.call("give_back", token=token)["result"] == 0
    return ended and client.call("synchronize")["result"] == 0


def open_context(container: Container) -> Client:
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    return client


def measure(kind: str, container: Container, machine: Machine) -> Verdict:
    """One kind in a container of two processes with a slice of 12 MiB."""
    container.limit(LIMIT)
    client, other = open_context(container), open_context(container)
    before = machine.used_bytes()
    result, token = take(client, kind, SIZE)
    really = machine.used_bytes() - before
    counted = result == 0 and really == SIZE and client.info() == (LIMIT - SIZE, LIMIT)
    refused = other if KINDS[kind].given_up else client
    limited = take(refused, "alloc", SIZE)[0] == OUT_OF_MEMORY
    shared = other.info() == (LIMIT - SIZE, LIMIT) and take(other, kind, SIZE)[0] == OUT_OF_MEMORY
    limited = limited and machine.used_bytes() - before == really
    freed = (
        give_back(client, token)
        and client.info() == (LIMIT, LIMIT)
        and machine.used_bytes() == before
    )
    # The other way round: the kind itself is refused where there is no room, and leaves nothing.
    held = take(other, "alloc", SIZE)[1]
    limited = limited and take(client, kind, SIZE)[0] == OUT_OF_MEMORY
    limited = limited and machine.used_bytes() == before + SIZE
    freed = freed and give_back(other, held)
    freed = freed and take(client, kind, SIZE)[0] == 0
    client.kill()
    freed = freed and take(other, "alloc", LIMIT)[0] == 0
    return Verdict(counted, limited, freed, shared)


HEAD = """# What libvgpu does with every call of CUDA @VERSION@

Written by `python -m tests.native.allocators.conformance` from the lists in the code. Tests compare
them with NVIDIA's headers of CUDA @VERSION@
([how to follow a newer one](README.md#a-new-cuda)).
How memory is charged is described in [libvgpu](../../docs/libvgpu.md#memory).

## Memory

`tests/native/allocators/test_memory_kinds.py` measures each way in a container of two processes
with a slice of 12 MiB. Each is:

- counted: the slice has less by exactly that much, as the card has
- limited: beyond the slice the call answers `CUDA_ERROR_OUT_OF_MEMORY`, and the card gave nothing
- freed: nothing stays charged when it has ended, or when its process is killed
- shared: the other process sees it, and is refused beyond what is left
"""


def table() -> Iterable[str]:
    yield "| Way | Takes | Ends |"
    yield "|---|---|---|"
    for name, kind in KINDS.items():
        yield f"| {name} | `{kind.takes}` | `{kind.ends}` |".replace(", ", "`, `")


def backtick(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


def render() -> str:
    """Build the document from the lists."""
    known, altered = sorted(set(requests("driver-calls.txt"))), {hook.request for hook in hooks()}
    ours = sorted({hook.symbol for hook in hooks()})
    partly = {request.name for request in altered}
    passing = {request.name for request in known} - partly
    older = [f"{r.name} {r.version}" for r in known if r.name in partly and r not in altered]
    nvml_ours, nvml_all = nvml_altered(), nvml_functions()
    return "\n".join(
        [
            HEAD.replace("@VERSION@", cuda_version(headers()["cuda.h"])),
            *table(),
            f"""
## Driver calls

Altered are {len(ours)} functions, under every version and with the per-thread default stream alike:

{backtick(ours)}

The other {len(passing)} names (`tests/native/data/driver-calls.txt`) pass through: a program holds
the driver's own address, and `tests/native/intercept/test_requests.py` asks for every one of them.
So do {backtick(WITHOUT_HEADER)[:-1]}, which a driver of 580.159 exports and NVIDIA's headers do not
have, and the 32-bit functions of CUDA 3.1, which cannot name an address of a modern card:
{backtick(older)}

## NVML

Altered: {backtick(sorted(nvml_ours))}
The other {len(set(nvml_all) - set(nvml_ours))} functions of NVML 13 pass through.
""",
        ]
    )


if __name__ == "__main__":
    DOCUMENT.write_text(render())
