"""Each way of taking memory on a real card, in a slice of 4 GiB.

A way that the card itself refuses, without the library, is skipped with its error.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.gpu.card import GIB, Card, Tenant, used_bytes
from tests.native.allocators.allocators import KINDS
from tests.native.allocators.context_makers import KINDS as CONTEXTS
from tests.native.machine import MIB, Client, open_context

LIMIT = 4 * GIB
SIZE = 512 * MIB
BLOCK = 64 * MIB  # in a further context
# Memory that the driver takes from the slice besides: handles, page tables.
BESIDE = 4 * MIB
# Memory that it keeps of a further, ended context: 6 MiB of a green one (H100, 580.159.04).
KEPT = 8 * MIB
# The card's own rounding, which is in no account.
ROUNDING = 64 * MIB
OUT_OF_MEMORY = 2
# Made of a context of another interface, which a machine without a display does not have.
OF_OTHERS = (
    "cuGLCtxCreate",
    "cuGLCtxCreate_v2",
    "cuVDPAUCtxCreate",
    "cuVDPAUCtxCreate_v2",
)
HOWS = [how for how in CONTEXTS if how not in OF_OTHERS]


def outcome(client: Client, op: str, **arguments: Any) -> str | None:
    """Why the card refuses a call of the client; None: it does not."""
    try:
        result = client.call(op, **arguments)["result"]
    except (AssertionError, BrokenPipeError) as exc:
        return f"the program ends: {exc}"
    return f"CUresult {result}" if result != 0 else None


@pytest.fixture(scope="module")
def refusals(card: Card, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return this card's refusals without the library. A refusal may break the context."""
    env = Tenant(card, tmp_path_factory.mktemp("bare")).bare_env()
    calls: dict[str, dict[str, Any]] = {
        **{kind: {"op": "take", "kind": kind, "bytes": SIZE} for kind in KINDS},
        **{how: {"op": "further_context", "how": how, "bytes": BLOCK} for how in HOWS},
    }
    found: dict[str, str] = {}
    client = None
    for name, call in calls.items():
        client = client or open_context(Client(env))
        why = outcome(client, **call)
        if why is not None:
            found[name] = why
        if why is not None or name in KINDS:  # its memory is freed with its program
            client.end()
            client = None
    if client is not None:
        client.end()
    return found


@pytest.fixture
def client(tenants: list[Tenant]) -> Iterator[Client]:
    """A program in a slice of LIMIT."""
    tenants[0].limit(memory_bytes=LIMIT)
    started = open_context(Client(tenants[0].env()))
    yield started
    started.end()


def take(client: Client, kind: str, size: int) -> tuple[int, int]:
    answer = client.call("take", kind=kind, bytes=size)
    return int(answer["result"]), int(answer["token"])


def free(client: Client) -> int:
    free_bytes, total = client.info()
    assert total == LIMIT
    return free_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_taking_memory_is_held_to_the_slice(
    card: Card, refusals: Mapping[str, str], client: Client, kind: str
) -> None:
    if kind in refusals:
        pytest.skip(f"this card refuses it without the library: {refusals[kind]}")
    at_first, card_at_first = free(client), used_bytes(card)

    def grown_bytes() -> int:
        return used_bytes(card) - card_at_first

    result, token = take(client, kind, SIZE)
    assert result == 0
    assert free(client) == pytest.approx(at_first - SIZE, abs=BESIDE)
    assert grown_bytes() <= SIZE + ROUNDING
    # Beyond the slice it is refused, and the card gives nothing.
    assert take(client, kind, LIMIT + SIZE)[0] == OUT_OF_MEMORY
    assert grown_bytes() <= SIZE + ROUNDING
    if not KINDS[kind].given_up:
        assert free(client) == pytest.approx(at_first - SIZE, abs=BESIDE)
        assert take(client, "alloc", at_first - SIZE // 2)[0] == OUT_OF_MEMORY
    # Given back, not waited for: whatever the card still holds of it, it gives the slice at most.
    assert client.call("give_back", token=token) == {"result": 0}
    result, block = take(client, "alloc", at_first)
    assert result in (0, OUT_OF_MEMORY)
    assert grown_bytes() <= at_first + ROUNDING
    if result == 0:
        assert client.call("give_back", token=block) == {"result": 0}
    assert client.call("synchronize") == {"result": 0}
    assert free(client) == pytest.approx(at_first, abs=BESIDE)
    assert grown_bytes() <= ROUNDING


@pytest.mark.parametrize("kind", ["stream-ordered", "own-pool", "kept-by-pool"])
def test_pools_let_go_of_freed_memory_before_anything_is_refused(
    card: Card, client: Client, kind: str
) -> None:
    at_first, card_at_first = free(client), used_bytes(card)
    result, token = take(client, kind, at_first - SIZE)
    assert result == 0
    if not KINDS[kind].given_up:  # that one has freed it already
        assert client.call("give_back", token=token) == {"result": 0}
    assert take(client, "alloc", at_first - BESIDE)[0] == 0
    assert used_bytes(card) - card_at_first <= at_first + ROUNDING


@pytest.mark.parametrize("how", HOWS)
def test_a_further_context_is_charged_until_it_ends(
    refusals: Mapping[str, str], client: Client, how: str
) -> None:
    if how in refusals:
        pytest.skip(f"this card refuses it without the library: {refusals[how]}")
    at_first = free(client)
    answer = client.call("further_context", how=how, bytes=BLOCK)
    assert answer["result"] == 0
    assert answer["made"] <= at_first
    assert answer["held"] == pytest.approx(answer["made"] - BLOCK, abs=BESIDE)
    assert answer["ended"] == pytest.approx(at_first, abs=KEPT)
