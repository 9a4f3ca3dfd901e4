"""Questions to the API server about a caller's rights, and how long their answers are cached."""

from __future__ import annotations

import asyncio

import pytest
from hamicommon.access import checks
from hamicommon.access.checks import (
    Access,
    ApiCaller,
    NotAllowed,
    Right,
    Unauthenticated,
    bearer_token,
)
from hamicommon.errors import Unavailable

from tests.unit.clock import Clock

READ = Right(verb="get", group="hami.io", resource="scheduler", role="hami-reader")
OPERATE = Right(verb="update", group="hami.io", resource="scheduler", role="hami-operator")


class Reviews:
    """An API server with two users."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_do = {"reader": {READ}, "operator": {READ, OPERATE}}
        self.away = False
        self.hangs = False
        self.at_once = self.most_at_once = 0

    async def whose(self, token: str) -> ApiCaller:
        self.asked.append(token)
        if self.hangs:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.Event().wait()
            finally:
                self.at_once -= 1
        if self.away:
            raise Unavailable("Kubernetes API: connection refused")
        if token not in self.may_do:
            raise Unauthenticated("the token is invalid: not known")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return right in self.may_do[caller.username]


async def test_a_reader_reads_and_an_operator_operates() -> None:
    checked = Access(Reviews())

    assert (await checked.check("reader", READ)).username == "reader"
    assert (await checked.check("operator", OPERATE)).username == "operator"
    with pytest.raises(
        NotAllowed, match=r"^reader may not update scheduler\.hami\.io: .* hami-operator to"
    ):
        await checked.check("reader", OPERATE)


@pytest.mark.parametrize("token", ["", "unknown", "x" * 20_000], ids=["none", "unknown", "long"])
async def test_who_is_not_known_gets_that_answer(token: str) -> None:
    with pytest.raises(Unauthenticated, match="token"):
        await Access(Reviews()).check(token, READ)


async def test_an_answer_is_kept_for_a_while_and_a_refusal_shorter() -> None:
    reviews, clock = Reviews(), Clock()
    checked = Access(reviews, clock=clock)

    for _ in range(3):
        await checked.check("reader", READ)
        with pytest.raises(Unauthenticated):
            await checked.check("unknown", READ)
    assert reviews.asked == ["reader", "unknown"]

    clock.now = checks.REFUSED_S
    with pytest.raises(Unauthenticated):
        await checked.check("unknown", READ)
    await checked.check("reader", READ)
    assert reviews.asked == ["reader", "unknown", "unknown"]

    clock.now = checks.ALLOWED_S
    reviews.may_do["reader"] = set()
    with pytest.raises(NotAllowed):
        await checked.check("reader", READ)


async def test_an_api_server_that_is_away_lets_nobody_in_and_is_asked_again() -> None:
    reviews = Reviews()
    reviews.away = True
    checked = Access(reviews)

    with pytest.raises(Unavailable, match="connection refused"):
        await checked.check("reader", READ)
    reviews.away = False
    assert (await checked.check("reader", READ)).username == "reader"


async def test_an_api_server_that_hangs_is_waited_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "REVIEW_TIMEOUT_S", 0.05)
    reviews = Reviews()
    reviews.hangs = True
    checked = Access(reviews)

    answers = await asyncio.gather(
        *(checked.check(f"t{number}", READ) for number in range(40)), return_exceptions=True
    )

    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert reviews.most_at_once == checks.MAX_CONCURRENT_REVIEWS


@pytest.mark.parametrize(
    ("authorizations", "token"),
    [
        ([], ""),
        (["Bearer t"], "t"),
        (["bearer  t "], "t"),
        (["Basic t"], ""),
        (["Bearer"], ""),
        (["Bearer t", "Bearer u"], ""),
    ],
)
def test_one_bearer_token_is_taken(authorizations: list[str], token: str) -> None:
    assert bearer_token(authorizations) == token


def test_a_refusal_on_a_path_names_it() -> None:
    assert str(Right(verb="get", path="/metrics", role="x")) == "get /metrics"
