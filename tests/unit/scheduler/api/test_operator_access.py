"""Calls without the right: the answer, the end of the call, and the caller's name."""

from __future__ import annotations

import logging

import httpx
import pytest
from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.api.operator_access import (
    OperatorAccess,
    Role,
    by_anybody,
    by_token,
    verb_of,
)
from hami_scheduler.ports.ledger import CallOutcome, OperatorCall
from hamicommon.access.checks import Access, ApiCaller, Right, Unauthenticated
from hamicommon.errors import Forbidden, HamiError, Unavailable
from starlette.types import Receive, Scope, Send


class Reviews:
    """`good` reads; other tokens end in the error of their name."""

    errors: dict[str, HamiError] = {  # noqa: RUF012
        "forged": Unauthenticated("the token is invalid: not known"),
        "away": Unavailable("Kubernetes API: connection refused"),
        "no-right": Forbidden("Kubernetes API: tokenreviews is forbidden"),
    }

    async def whose(self, token: str) -> ApiCaller:
        if token in self.errors:
            raise self.errors[token]
        return ApiCaller(username=token, groups=("people", "gpu"))

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return caller.username == "operator" or (
            caller.username == "good" and right == Role.READ.value
        )


class App:
    """Counts what reaches it."""

    calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def send_request(app: App, method: str, *authorization: str) -> httpx.Response:
    transport = httpx.ASGITransport(
        app=OperatorAccess(app, by_token(Access(Reviews())), Activity())
    )
    headers = [("Authorization", value) for value in authorization]
    async with httpx.AsyncClient(transport=transport, base_url="https://scheduler") as client:
        return await client.request(method, "/v1/devices", headers=headers)


@pytest.mark.parametrize(
    ("method", "authorization", "status", "sentence"),
    [
        ("GET", (), 401, "no token was sent"),
        ("GET", ("Basic Z29vZA==",), 401, "no token was sent"),
        ("GET", ("Bearer ",), 401, "no token was sent"),
        ("GET", ("Bearer good", "Bearer forged"), 401, "no token was sent"),
        ("GET", ("Bearer forged",), 401, "the token is invalid"),
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

    answer = await send_request(app, method, *authorization)

    assert (answer.status_code, app.calls) == (status, 0)
    assert sentence in answer.json()["error"]
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize("authorization", ["Bearer good", "bearer  good "])
async def test_a_call_with_the_right_passes(authorization: str) -> None:
    app = App()

    assert (await send_request(app, "GET", authorization)).status_code == 200
    assert app.calls == 1


class Journal:
    """Keeps calls, or is away."""

    def __init__(self, error: HamiError | None = None, *, ends: bool = True) -> None:
        self.calls: list[OperatorCall] = []
        self.outcomes: list[tuple[CallOutcome, str]] = []
        self.refusals: list[tuple[OperatorCall, str]] = []
        self._error = error
        self._ends = ends

    async def begin(self, call: OperatorCall) -> int:
        if self._error is not None and self._ends:
            raise self._error
        self.calls.append(call)
        return len(self.calls)

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        assert number == len(self.calls)
        if self._error is not None:
            raise self._error
        self.outcomes.append((outcome, message))

    async def record_refusal(self, call: OperatorCall, message: str) -> None:
        if self._error is not None:
            raise self._error
        self.refusals.append((call, message))


async def send_journalled(
    journal: Journal,
    app: object,
    method: str,
    path: str,
    token: str = "operator",
    activity: Activity | None = None,
) -> httpx.Response:
    access = OperatorAccess(
        app,  # type: ignore[arg-type]
        by_token(Access(Reviews())),
        activity or Activity(),
        journal,
    )
    transport = httpx.ASGITransport(app=access, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://scheduler") as client:
        headers = {"Authorization": f"Bearer {token}"}
        return await client.request(method, path, headers=headers, content=b"{}")


@pytest.mark.parametrize(
    ("path", "verb", "about"),
    [
        ("/v1/adopt", "adopt", "{}"),
        ("/v1/dead-letters/7/send", "send-dead-letter", "7"),
        ("/v1/something", "POST /v1/something", "{}"),
    ],
)
async def test_a_call_that_changes_something_is_kept_with_its_caller(
    path: str, verb: str, about: str
) -> None:
    journal, app = Journal(), App()

    await send_journalled(journal, app, "POST", path)

    [kept] = journal.calls
    assert kept == OperatorCall(
        user="operator",
        groups=("people", "gpu"),
        address="127.0.0.1",
        verb=verb,
        object=about,
    )
    assert journal.outcomes == [(CallOutcome.DONE, "{}")]


async def test_every_call_that_is_more_than_a_look_is_one_line_with_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal()
    with caplog.at_level(logging.INFO):
        await send_journalled(journal, App(), "GET", "/v1/devices")
        await send_journalled(journal, App(), "POST", "/v1/simulate", token="good")
        await send_journalled(journal, App(), "POST", "/v1/adopt")
        await send_journalled(journal, App(), "POST", "/v1/adopt", token="good")

    lines = [vars(record) for record in caplog.records if record.name.startswith("hami_")]
    assert [(each["message"], each["verb"], each.get("user")) for each in lines] == [
        ("operator call", "simulate", "good"),
        ("operator call", "adopt", "operator"),
        ("operator call refused", "adopt", None),
    ]
    assert (lines[1]["groups"], lines[1]["source"], lines[1]["status"]) == (
        "people gpu",
        "token",
        200,
    )
    assert "good may not update" in lines[2]["error"]
    assert [each.verb for each in journal.calls] == ["adopt"]


async def test_a_call_that_can_not_be_kept_is_not_carried_out() -> None:
    app = App()

    answer = await send_journalled(
        Journal(Unavailable("Postgres is away")), app, "POST", "/v1/adopt"
    )

    assert (answer.status_code, app.calls) == (503, 0)
    assert answer.json() == {"error": "Postgres is away"}


async def test_a_call_whose_end_can_not_be_written_is_answered_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal(Unavailable("Postgres is away"), ends=False)

    assert (await send_journalled(journal, App(), "POST", "/v1/adopt")).status_code == 200
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == [
        "Failed to write the outcome of an operator call"
    ]


async def test_a_call_that_fails_is_kept_as_failed() -> None:
    async def failing(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError

    journal = Journal()
    await send_journalled(journal, failing, "POST", "/v1/adopt")

    assert journal.outcomes == [(CallOutcome.FAILED, "it ended without an answer")]


@pytest.mark.parametrize("journal", [Journal(), Journal(Unavailable("Postgres is away"))])
async def test_who_may_not_is_kept_and_refused_either_way(journal: Journal) -> None:
    app = App()

    answer = await send_journalled(journal, app, "POST", "/v1/adopt", token="good")

    assert (answer.status_code, app.calls, journal.calls) == (403, 0, [])
    for call, message in journal.refusals:
        assert (call.user, call.verb) == ("good", "adopt")
        assert "may not update" in message


async def test_without_tokens_anybody_calls_and_has_no_name() -> None:
    found = await by_anybody({"type": "http"}, Role.OPERATE)

    assert found == ApiCaller(username="")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/allocations", 200),
        ("GET", "/v1/drift", 200),
        ("GET", "/v1/dead-letters", 200),
        ("GET", "/v1/vain-settings", 503),
        ("POST", "/v1/simulate", 503),
        ("POST", "/v1/adopt", 503),
        ("POST", "/v1/dead-letters/7/send", 503),
    ],
)
async def test_a_replica_that_stands_by_reads_and_names_who_does_the_rest(
    method: str, path: str, status: int
) -> None:
    lease = SchedulerLease("hami-system/hami-scheduler", "pod-b")
    for renewed in ("1", "2"):
        lease.on_upsert(
            {
                "spec": {
                    "holderIdentity": "pod-a_7f",
                    "renewTime": renewed,
                    "leaseDurationSeconds": 6,
                }
            },
            None,
        )
    journal, app = Journal(), App()

    answer = await send_journalled(journal, app, method, path, activity=Activity(lease))

    assert (answer.status_code, app.calls) == (status, int(status == 200))
    assert journal.calls == []
    if status != 200:
        assert answer.json() == {
            "error": "this replica is on standby: pod-a holds the Lease hami-system/hami-scheduler"
        }


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/adopt", Role.READ),
        ("GET", "/v1/dead-letters", Role.READ),
        ("POST", "/v1/simulate", Role.READ),
        ("POST", "/v1/adopt", Role.OPERATE),
        ("POST", "/v1/dead-letters/7/send", Role.OPERATE),
        ("POST", "/bind", Role.OPERATE),
        ("POST", "/v1/simulate/", Role.OPERATE),
        ("POST", "/v1/dead-letters/7/send/x", Role.OPERATE),
        ("DELETE", "/v1/devices", Role.OPERATE),
    ],
)
def test_what_is_not_known_to_read_operates(method: str, path: str, role: Role) -> None:
    assert verb_of(method, path).role is role
