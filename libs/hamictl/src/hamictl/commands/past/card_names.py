"""Names of cards as people write them: a uuid, the beginning of one, or NODE/INDEX."""

from __future__ import annotations

from collections.abc import Sequence

from hamicommon.errors import InvalidRequest, NotFound

from hamictl.output.records import Row
from hamictl.questions import QuestionClient
from hamictl.settings import Settings
from hamictl.target import find_target

SHORTEST = 4
"""Characters of a uuid's beginning."""
NAMED = 3
"""Of several cards that begin alike, in the sentence."""


async def uuid_of(name: str) -> str:
    """The uuid of the card that is there and has this name.

    Raises: NotFound, InvalidRequest where several begin so, Forbidden, Unavailable.
    """
    client = QuestionClient(find_target(Settings()))
    node, slash, index = name.rpartition("/")
    where = {"node": node} if slash else {}
    return chosen((await client.ask("cards", where)).rows, name, index if slash else "")


async def uuid_or_name(name: str) -> str:
    """The same; a card that is gone is known by its whole uuid alone, which this then is.

    Raises: InvalidRequest, Forbidden, Unavailable.
    """
    try:
        return await uuid_of(name)
    except NotFound:
        return name


def chosen(cards: Sequence[Row], name: str, index: str) -> str:
    """Return the one of these cards with the index, of that uuid, or whose uuid begins so.

    Raises: as `uuid_of`.
    """
    if index:
        found = [str(row["device_uuid"]) for row in cards if str(row["card_index"]) == index]
    elif any(str(row["device_uuid"]) == name for row in cards):
        found = [name]
    elif len(name) < SHORTEST:
        found = []
    else:
        found = [str(row["device_uuid"]) for row in cards if _begins(row, name)]
    if not found and index and cards:
        node = name.rpartition("/")[0]
        raise NotFound(f"there is no card {name}: {node} has {_indices(cards)}")
    if not found:
        raise NotFound(
            f"there is no card {name}: `hamictl get devices` has the cards that are known"
        )
    if len(found) > 1:
        some = ", ".join(sorted(found)[:NAMED])
        raise InvalidRequest(f"{len(found)} cards begin with {name}, such as {some}")
    return found[0]


def _indices(cards: Sequence[Row]) -> str:
    """`cards 0 to 3`, or each index where one is missing between them."""
    known = sorted(int(row["card_index"]) for row in cards)
    if len(known) == 1:
        return f"card {known[0]} alone"
    if known == list(range(known[0], known[-1] + 1)):
        return f"cards {known[0]} to {known[-1]}"
    return f"cards {', '.join(map(str, known))}"


def _begins(row: Row, name: str) -> bool:
    return str(row["device_uuid"]).lower().startswith(name.lower())
