"""The scheduler's query API, as hamictl reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import httpx
from hamicommon.errors import Forbidden, InvalidRequest, NotFound, Unavailable

from hamictl.connection_errors import not_a_scheduler, sentence
from hamictl.scheduler_address import SchedulerAddress

Row = dict[str, Any]
TIMEOUT_S = 10.0
FIRST_WAIT_S = 1.5
"""A service that has not answered by then is asked whether it answers anything at all."""
PROBE_TIMEOUT_S = 2.0
PROBE_PATH = "/healthz"
"""Any answer to it will do, a refusal too."""


class SchedulerClient:
    """Answers of one scheduler replica; all of them read the same ledger."""

    def __init__(self, address: SchedulerAddress) -> None:
        self._address = address
        # FastAPI's own form; the scheduler answers errors in its own.
        self._is_metrics = address.service == "hami-metrics"

    async def get(self, path: str, **query: str) -> Any:
        """The decoded answer.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        return await self._ask("GET", path, params=query)

    async def text(self, path: str, **query: str) -> str:
        """The answer as it is, for files.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        answer = await self._send("GET", path, params=query)
        if not answer.is_success:
            self._decoded_or_error(answer)
        return answer.text

    async def post(self, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Asks for something to be done; the decoded answer.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        return await self._ask("POST", path, json=body, timeout=timeout_s)

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        return self._decoded_or_error(await self._send(method, path, **how))

    async def _send(self, method: str, path: str, **how: Any) -> httpx.Response:
        address = self._address
        host, headers, verify = address.host, address.headers(), address.ssl_context()
        try:
            async with httpx.AsyncClient(
                timeout=TIMEOUT_S, verify=verify, headers=headers
            ) as client:
                return await self._answer_while_alive(
                    client, client.request(method, f"{address.url}{path}", **how)
                )
        except httpx.HTTPError as exc:
            raise Unavailable(sentence(exc, address)) from exc
        except (httpx.InvalidURL, ValueError) as exc:
            raise InvalidRequest(f"{address.prefix}_URL={address.url} ({host}): {exc}") from exc

    async def _answer_while_alive(
        self, client: httpx.AsyncClient, request: Coroutine[Any, Any, httpx.Response]
    ) -> httpx.Response:
        """The answer to the request, however long that takes a service that is alive.

        One that hangs takes connections and answers nothing. Raises: httpx.HTTPError.
        """
        asked = asyncio.ensure_future(request)
        try:
            await asyncio.wait([asked], timeout=FIRST_WAIT_S)
            if not asked.done():
                await client.get(f"{self._address.url}{PROBE_PATH}", timeout=PROBE_TIMEOUT_S)
            return await asked
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])

    def _decoded_or_error(self, answer: httpx.Response) -> Any:
        body = self._decoded(answer)
        if answer.is_success:
            return body
        message = str(body.get("error") or body.get("detail") or body)
        if answer.status_code == 404:
            raise NotFound(message)
        if answer.status_code in (401, 403):
            raise Forbidden(message)
        if answer.status_code < 500:
            raise InvalidRequest(message)
        raise Unavailable(message)

    def _decoded(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            body = answer.json()
        except ValueError:
            body = None
        known = isinstance(body, dict) and (
            "error" in body or "detail" in body if self._is_metrics else "error" in body
        )
        ours = isinstance(body, dict) and (answer.is_success or known or _checked(answer))
        if not ours:
            raise Unavailable(not_a_scheduler(answer, self._address))
        return cast(dict[str, Any], body)

    async def rows(self, path: str, **query: str) -> list[Row]:
        """A list answer: `{"items": [...]}`."""
        return self._rows(path, await self.get(path, **query))

    async def rows_if_known(self, path: str, **query: str) -> list[Row] | None:
        """As `rows`; None where the service is of a version before this path."""
        answer = await self._send("GET", path, params=query)
        # FastAPI's own answer, which no route of ours gives.
        if answer.status_code == 404 and answer.text == '{"detail":"Not Found"}':
            return None
        return self._rows(path, self._decoded_or_error(answer))

    def _rows(self, path: str, body: Any) -> list[Row]:
        if not isinstance(body.get("items"), list):
            raise Unavailable(
                f"{self._address.url}{path} is not answered as {self._address.service} does"
            )
        return cast(list[Row], body["items"])


def _checked(answer: httpx.Response) -> bool:
    """Whether FastAPI refused a parameter, before our own code was asked."""
    return answer.status_code == 422
