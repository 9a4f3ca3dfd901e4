"""Who may ask the operator API: what is asked of the API server, and what of it is kept."""

from __future__ import annotations

import asyncio

import pytest
from hami_scheduler.api.operator_access import role_of
from hami_scheduler.ports import access
from hami_scheduler.ports.access import Access, ApiCaller, NotAllowed, Role, Unauthenticated
from hamicommon.errors import Unavailable


class Reviews:
    """An API server with two users."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_do = {"reader": {Role.READ}, "operator": {Role.READ, Role.OPERATE}}
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
            raise Unauthenticated("the token is not good: not known")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, role: Role) -> bool:
        return role in self.may_do[caller.username]


class Clock:
    """Seconds, moved by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_reader_reads_and_an_operator_operates() -> None:
    checked = Access(Reviews())

    assert (await checked.check("reader", Role.READ)).username == "reader"
    assert (await checked.check("operator", Role.OPERATE)).username == "operator"
    with pytest.raises(
        NotAllowed, match=r"^reader may not update scheduler\.hami\.io: .* hami-operator to"
    ):
        await checked.check("reader", Role.OPERATE)


@pytest.mark.parametrize("token", ["", "unknown", "x" * 20_000], ids=["none", "unknown", "long"])
async def test_who_is_not_known_gets_that_answer(token: str) -> None:
    with pytest.raises(Unauthenticated, match="token"):
        await Access(Reviews()).check(token, Role.READ)


async def test_an_answer_is_kept_for_a_while_and_a_refusal_shorter() -> None:
    reviews, clock = Reviews(), Clock()
    checked = Access(reviews, clock=clock)

    for _ in range(3):
        await checked.check("reader", Role.READ)
        with pytest.raises(Unauthenticated):
            await checked.check("unknown", Role.READ)
    assert reviews.asked == ["reader", "unknown"]

    clock.now_s = access.REFUSED_S
    with pytest.raises(Unauthenticated):
        await checked.check("unknown", Role.READ)
    await checked.check("reader", Role.READ)
    assert reviews.asked == ["reader", "unknown", "unknown"]

    clock.now_s = access.ALLOWED_S
    reviews.may_do["reader"] = set()
    with pytest.raises(NotAllowed):
        await checked.check("reader", Role.READ)


async def test_an_api_server_that_is_away_lets_nobody_in_and_is_asked_again() -> None:
    reviews = Reviews()
    reviews.away = True
    checked = Access(reviews)

    with pytest.raises(Unavailable, match="connection refused"):
        await checked.check("reader", Role.READ)
    reviews.away = False
    assert (await checked.check("reader", Role.READ)).username == "reader"


async def test_an_api_server_that_hangs_is_waited_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "REVIEW_TIMEOUT_S", 0.05)
    reviews = Reviews()
    reviews.hangs = True
    checked = Access(reviews)

    answers = await asyncio.gather(
        *(checked.check(f"t{number}", Role.READ) for number in range(40)), return_exceptions=True
    )

    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert reviews.most_at_once == access.REVIEWS_AT_ONCE


async def test_a_flood_of_invented_tokens_fills_no_memory() -> None:
    checked = Access(Reviews())

    for number in range(access.CACHE_MOST + 100):
        with pytest.raises(Unauthenticated):
            await checked.check(f"invented-{number}", Role.READ)

    assert len(checked._known) == access.CACHE_MOST


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/allocations", Role.READ),
        ("GET", "/v1/dead-letters", Role.READ),
        ("POST", "/v1/simulate", Role.READ),
        ("POST", "/v1/adopt", Role.OPERATE),
        ("POST", "/v1/dead-letters/7/send", Role.OPERATE),
        ("DELETE", "/v1/simulate/x", Role.OPERATE),
        ("POST", "/bind", Role.OPERATE),
    ],
)
def test_what_is_not_known_to_read_alone_is_operating(method: str, path: str, role: Role) -> None:
    assert role_of(method, path) is role
