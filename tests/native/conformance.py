"""What each way of taking device memory is worth under libvgpu: measured on the stand-in driver.

Run as a program (`python -m tests.native.conformance`) it writes docs/libvgpu-conformance.md.
"""

from dataclasses import dataclass

from tests.native.allocators import KINDS
from tests.native.machine import MIB, Client, Container, Machine

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


def take(client: Client, kind: str, size: int) -> tuple[int, int]:
    answer = client.call("take", kind=kind, bytes=size)
    return int(answer["result"]), int(answer["token"])


def opened(container: Container) -> Client:
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    return client


def measure(kind: str, container: Container, machine: Machine) -> Verdict:
    """One kind in a container of two processes with a slice of 12 MiB."""
    container.limit(LIMIT)
    client, other = opened(container), opened(container)
    before = machine.used()
    result, token = take(client, kind, SIZE)
    really = machine.used() - before
    counted = result == 0 and really == SIZE and client.info() == (LIMIT - SIZE, LIMIT)
    refused = other if KINDS[kind].given_up else client
    limited = take(refused, "alloc", SIZE)[0] == OUT_OF_MEMORY
    shared = other.info() == (LIMIT - SIZE, LIMIT) and take(other, kind, SIZE)[0] == OUT_OF_MEMORY
    limited = limited and machine.used() - before == really
    ended = client.call("give_back", token=token)["result"] == 0
    freed = ended and client.info() == (LIMIT, LIMIT) and machine.used() == before
    # The other way round: the kind itself is refused where there is no room, and leaves nothing.
    held = take(other, "alloc", SIZE)[1]
    limited = limited and take(client, kind, SIZE)[0] == OUT_OF_MEMORY
    limited = limited and machine.used() == before + SIZE
    freed = freed and other.call("give_back", token=held)["result"] == 0
    freed = freed and take(client, kind, SIZE)[0] == 0
    client.kill()
    freed = freed and take(other, "alloc", LIMIT)[0] == 0
    return Verdict(counted, limited, freed, shared)
