"""The scheduler's query API, as hamictl reads it."""

from __future__ import annotations

from typing import Any, cast

import httpx
from hamicommon.errors import InvalidRequest, NotFound, Unavailable

Row = dict[str, Any]
TIMEOUT_S = 10.0


class SchedulerClient:
    """Answers of one scheduler replica; all of them read the same ledger."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def get(self, path: str, **query: str) -> Any:
        """The decoded answer.

        Raises: NotFound, InvalidRequest, Unavailable.
        """
        return await self._ask("GET", path, params=query)

    async def post(self, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Asks for something to be done; the decoded answer.

        Raises: NotFound, InvalidRequest, Unavailable.
        """
        return await self._ask("POST", path, json=body, timeout=timeout_s)

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
                answer = await client.request(method, f"{self._url}{path}", **how)
        except httpx.HTTPError as exc:
            reason = str(exc) or type(exc).__name__
            raise Unavailable(f"scheduler {self._url} does not answer: {reason}") from exc
        if answer.is_success:
            return answer.json()
        message = _message(answer)
        if answer.status_code == 404:
            raise NotFound(message)
        if answer.status_code < 500:
            raise InvalidRequest(message)
        raise Unavailable(message)

    async def rows(self, path: str, **query: str) -> list[Row]:
        """A list answer: `{"items": [...]}`."""
        return cast(list[Row], (await self.get(path, **query))["items"])


def _message(answer: httpx.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return f"{answer.request.url}: {answer.status_code}"
    return str(body.get("error") or body.get("detail") or body)
