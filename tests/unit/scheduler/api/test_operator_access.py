"""What a call without the right gets, and that nothing of it reaches the application."""

from __future__ import annotations

import httpx
import pytest
from hami_scheduler.api.operator_access import OperatorAccess
from hami_scheduler.ports.access import Access, ApiCaller, Role, Unauthenticated
from hamicommon.errors import Forbidden, HamiError, Unavailable
from starlette.types import Receive, Scope, Send


class Reviews:
    """`good` reads; other tokens end in the error of their name."""

    errors: dict[str, HamiError] = {  # noqa: RUF012
        "forged": Unauthenticated("the token is not good: not known"),
        "away": Unavailable("Kubernetes API: connection refused"),
        "no-right": Forbidden("Kubernetes API: tokenreviews is forbidden"),
    }

    async def whose(self, token: str) -> ApiCaller:
        if token in self.errors:
            raise self.errors[token]
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, role: Role) -> bool:
        return caller.username == "good" and role is Role.READ


class App:
    """Counts what reaches it."""

    calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def asked(app: App, method: str, *authorization: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=OperatorAccess(app, Access(Reviews())))
    headers = [("Authorization", value) for value in authorization]
    async with httpx.AsyncClient(transport=transport, base_url="https://scheduler") as client:
        return await client.request(method, "/v1/devices", headers=headers)


@pytest.mark.parametrize(
    ("method", "authorization", "status", "sentence"),
    [
        ("GET", (), 401, "a token is wanted"),
        ("GET", ("Basic Z29vZA==",), 401, "a token is wanted"),
        ("GET", ("Bearer ",), 401, "a token is wanted"),
        ("GET", ("Bearer good", "Bearer forged"), 401, "a token is wanted"),
        ("GET", ("Bearer forged",), 401, "the token is not good"),
        ("GET", ("Bearer other",), 403, "other may not get scheduler.hami.io"),
        ("POST", ("Bearer good",), 403, "good may not update scheduler.hami.io"),
        ("GET", ("Bearer away",), 503, "connection refused"),
        ("GET", ("Bearer no-right",), 503, "tokenreviews is forbidden"),
    ],
)
async def test_a_call_without_the_right_is_refused_in_one_sentence(
    method: str, authorization: tuple[str, ...], status: int, sentence: str
) -> None:
    app = App()

    answer = await asked(app, method, *authorization)

    assert (answer.status_code, app.calls) == (status, 0)
    assert sentence in answer.json()["error"]
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize("authorization", ["Bearer good", "bearer  good "])
async def test_a_call_with_the_right_passes(authorization: str) -> None:
    app = App()

    assert (await asked(app, "GET", authorization)).status_code == 200
    assert app.calls == 1
