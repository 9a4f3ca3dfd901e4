"""Bodies of the operator API, read up to a bound: a caller that may ask may not fill the memory."""

from __future__ import annotations

import orjson
from fastapi import Request
from hamicommon.errors import InvalidRequest


class TooLong(InvalidRequest):
    """413: the body is longer than the route reads."""


async def read_json(request: Request, most_bytes: int) -> object:
    """The decoded body. Raises: TooLong, InvalidRequest when it is no JSON."""
    body = await read_body(request, most_bytes)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not JSON: {exc}") from exc


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body as it came. Raises: TooLong."""
    length = request.headers.get("content-length", "")
    body = bytearray()
    if not length.isdigit() or int(length) <= most_bytes:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
    raise TooLong(f"the body is longer than {most_bytes} bytes, which is all that is read here")
