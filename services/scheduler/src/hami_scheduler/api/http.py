"""HTTP details: bounded bodies, and our errors as responses.

A caller that may ask may not fill the memory. An error is a status, by one table, and
`{"error": sentence}` as the body.
"""

from __future__ import annotations

import orjson
from fastapi import FastAPI, Request, Response
from hamicommon.access.checks import NotAllowed, Unauthenticated
from hamicommon.errors import Conflict, HamiError, InvalidRequest, NotFound, Unavailable
from starlette.types import Send

JSON = "application/json"


class TooLong(InvalidRequest):
    """Error 413: the body is longer than the route reads."""


_STATUSES = (
    # Kinds of InvalidRequest stand before it.
    (Unauthenticated, 401),
    (NotAllowed, 403),
    (TooLong, 413),
    (InvalidRequest, 400),
    (NotFound, 404),
    (Conflict, 409),
    (Unavailable, 503),
)


def status_of(error: HamiError) -> int:
    """Return an error's HTTP status; 500 if the query API should never raise it."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def body_of(error: HamiError) -> bytes:
    """Return the error's message as JSON."""
    return orjson.dumps({"error": str(error)})


def answer_errors(app: FastAPI) -> None:
    """Make every route of the application answer our errors by the table."""

    async def answer(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HamiError)
        return Response(body_of(error), status_code=status_of(error), media_type=JSON)

    app.add_exception_handler(HamiError, answer)


async def refuse(error: HamiError, send: Send) -> None:
    """Answer a call that is refused before the application (ASGI)."""
    body = body_of(error)
    headers = [
        (b"content-type", JSON.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    start = {"type": "http.response.start", "status": status_of(error), "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def read_json(request: Request, most_bytes: int) -> object:
    """Return the decoded body. Raises: TooLong, InvalidRequest if it is no JSON."""
    body = await read_body(request, most_bytes)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not JSON: {exc}") from exc


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body unchanged. Raises: TooLong."""
    length = request.headers.get("content-length", "")
    body = bytearray()
    if not length.isdigit() or int(length) <= most_bytes:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
    raise TooLong(f"the body is longer than {most_bytes} bytes, the limit of this path")
