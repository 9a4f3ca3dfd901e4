"""Every call of the query API answers our errors with the same statuses and one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from hami_scheduler.api.http import TooLong, answer_errors
from hami_scheduler.api.v1 import operator_routes
from hamicommon.errors import (
    Conflict,
    Forbidden,
    HamiError,
    InvalidRequest,
    NotFound,
    Unavailable,
    Unschedulable,
)

USE_CASES = ("queries", "explainer", "simulated", "adopter", "letters", "by_claims")


class Failing:
    """Queries, letters and use cases that all end with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def _fail(self, *_: object, **__: object) -> Any:
        raise self._error

    allocations = nodes = devices = history = drift = _fail
    explain = answer = latest = send_again = waiting = __call__ = _fail


async def call(error: Exception, method: str, path: str) -> httpx.Response:
    failing = cast(Any, Failing(error))
    app = FastAPI()
    answer_errors(app)
    service = SimpleNamespace(**dict.fromkeys(USE_CASES, failing))
    app.include_router(operator_routes(cast(Any, service)))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        return await client.request(method, path, json={} if method == "POST" else None)


CALLS = (
    ("GET", "/v1/allocations"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/devices"),
    ("GET", "/v1/pods/u/history"),
    ("GET", "/v1/pods/u/explain"),
    ("GET", "/v1/drift"),
    ("GET", "/v1/dead-letters"),
    ("GET", "/v1/pods-by-claims"),
    ("POST", "/v1/dead-letters/7/send"),
    ("POST", "/v1/simulate"),
    ("POST", "/v1/adopt"),
)


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("there is none"), 404),
        (Conflict("lost a race"), 409),
        (Unavailable("Postgres is away"), 503),
        (Forbidden("the API server refuses"), 503),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_of_ours_is_a_status_and_a_sentence(
    error: HamiError, status: int, method: str, path: str
) -> None:
    answer = await call(error, method, path)

    assert (answer.status_code, answer.json()) == (status, {"error": str(error)})


async def test_a_body_that_is_wrong_and_one_that_is_too_long_differ() -> None:
    wrong = await call(InvalidRequest("pod: a Pod object is wanted"), "POST", "/v1/simulate")
    long = await call(TooLong("the body is longer than 5 bytes"), "POST", "/v1/simulate")

    assert (wrong.status_code, long.status_code) == (400, 413)


async def test_a_letter_that_may_not_be_sent_again_is_a_conflict() -> None:
    answer = await call(InvalidRequest("letter 7: no mark"), "POST", "/v1/dead-letters/7/send")

    assert (answer.status_code, answer.json()) == (409, {"error": "letter 7: no mark"})


@pytest.mark.parametrize("error", [Unschedulable({}), ValueError("nobody thought of this")])
async def test_what_no_call_should_end_with_is_an_internal_error(error: Exception) -> None:
    assert (await call(error, "GET", "/v1/nodes")).status_code == 500
