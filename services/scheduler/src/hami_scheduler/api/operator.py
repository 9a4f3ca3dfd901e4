"""What went wrong, for who looks after the system: drift that was found, messages given up.

`hamictl drift` and `hamictl dead-letters` show them, and send a letter again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Protocol

import orjson
from fastapi import APIRouter, Query, Response
from hamicommon.bus.dead_letters import DeadLetter
from hamicommon.errors import InvalidRequest, NotFound, Unavailable

from hami_scheduler.ports.queries import Queries, Row

# A letter's body is shown up to here; the largest of ours (an inventory of 16 cards) is some 8 KiB.
_SHOWN_BYTES = 16 * 1024


class Letters(Protocol):
    """Where messages wait that nobody could handle."""

    async def latest(self, limit: int) -> list[DeadLetter]:
        """Newest first. Raises: Unavailable."""
        ...

    async def send_again(self, sequence: int) -> DeadLetter:
        """Publishes it where it came from. Raises: NotFound, InvalidRequest, Unavailable."""
        ...


def router(queries: Queries, letters: Letters) -> APIRouter:
    """The routes over journal and bus."""
    api = APIRouter(prefix="/v1")

    async def drift(
        kind: Annotated[str | None, Query(alias="class")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        return await _answered(_items(queries.drift(kind=kind, limit=limit)))

    async def dead_letters(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        return await _answered(_letters(letters, limit))

    async def send(sequence: int) -> Response:
        return await _answered(_sent(letters, sequence))

    api.add_api_route("/drift", drift)
    api.add_api_route("/dead-letters", dead_letters)
    api.add_api_route("/dead-letters/{sequence}/send", send, methods=["POST"])
    return api


async def _items(rows: Awaitable[list[Row]]) -> object:
    return {"items": await rows}


async def _letters(letters: Letters, limit: int) -> object:
    return {"items": [_row(letter) for letter in await letters.latest(limit)]}


async def _sent(letters: Letters, sequence: int) -> object:
    return _row(await letters.send_again(sequence))


def _row(letter: DeadLetter) -> Row:
    return {
        "sequence": letter.sequence,
        "at": letter.at,
        "stream": letter.stream,
        "user": letter.user,
        "subject": letter.subject,
        "consumer": letter.consumer,
        "reason": letter.reason,
        "body": letter.data[:_SHOWN_BYTES].decode(errors="replace"),
    }


async def _answered(answer: Awaitable[object]) -> Response:
    try:
        body, status = await answer, 200
    except NotFound as exc:
        body, status = {"error": str(exc)}, 404
    except InvalidRequest as exc:
        body, status = {"error": str(exc)}, 409
    except Unavailable as exc:
        body, status = {"error": str(exc)}, 503
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")
