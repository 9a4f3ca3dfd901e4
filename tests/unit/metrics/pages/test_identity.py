"""Viewers of the pages, and the names that they see."""

from __future__ import annotations

import pytest
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.entry import check_bind
from hami_metrics.pages.identity import LoopbackOnly, ReviewedIdentity
from hamicommon.access.checks import ApiCaller, NotAllowed, Right, Unauthenticated
from hamicommon.errors import InvalidRequest
from starlette.requests import Request


class Reviews:
    """`admin` may all, `ann` may look and list the pods of nlp, `bo` may nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def whose(self, token: str) -> ApiCaller:
        self.asked.append(f"whose {token}")
        if token == "forged":
            raise Unauthenticated("the token is invalid: not known")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        self.asked.append(f"{caller.username}: {right}")
        if caller.username == "admin":
            return True
        ann = ("get questions.hami.io", "list pods in namespace nlp")
        return caller.username == "ann" and str(right) in ann


def asking(**headers: str) -> Request:
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": pairs})


async def test_a_user_sees_the_namespaces_whose_pods_they_may_list() -> None:
    reviews = Reviews()
    identity = ReviewedIdentity(reviews, proxy=False, show=ShowOwners.SIZES)
    request = asking(authorization="Bearer ann")
    viewer = await identity.viewer(request, ["nlp", "vision"])

    assert viewer.namespaces == {"nlp"}
    assert viewer.name == "ann"
    before = len(reviews.asked)
    await identity.viewer(request, ["nlp", "vision"])
    assert len(reviews.asked) == before
    assert (await identity.viewer(asking(authorization="Bearer admin"), [])).namespaces is None


async def test_answers_are_kept_a_minute_and_no_longer() -> None:
    now = 0.0
    reviews = Reviews()
    identity = ReviewedIdentity(reviews, proxy=False, clock=lambda: now)
    await identity.viewer(asking(authorization="Bearer ann"), ["nlp"])
    count = len(reviews.asked)
    now = 59.0
    await identity.viewer(asking(authorization="Bearer ann"), ["nlp"])
    assert len(reviews.asked) == count
    now = 61.0
    await identity.viewer(asking(authorization="Bearer ann"), ["nlp"])
    assert len(reviews.asked) == 2 * count


async def test_without_a_good_token_or_the_right_nobody_looks() -> None:
    identity = ReviewedIdentity(Reviews(), proxy=False)
    for headers in ({}, {"authorization": "Basic x"}, {"authorization": "Bearer forged"}):
        with pytest.raises(Unauthenticated):
            await identity.viewer(asking(**headers), [])
    with pytest.raises(NotAllowed, match="hami-viewer"):
        await identity.viewer(asking(authorization="Bearer bo"), [])
    # A header that a caller could send is nothing where tokens are asked for.
    with pytest.raises(Unauthenticated):
        await identity.viewer(asking(x_forwarded_user="admin"), [])


async def test_a_proxy_names_the_user() -> None:
    identity = ReviewedIdentity(Reviews(), proxy=True)
    assert (await identity.viewer(asking(x_forwarded_user="admin"), [])).name == "admin"
    with pytest.raises(Unauthenticated, match="sent no user"):
        await identity.viewer(asking(authorization="Bearer admin"), [])


USER, GROUPS = b"x-forwarded-user", b"x-forwarded-groups"


class Groups(Reviews):
    """Reviews that remember the groups they were asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: set[str] = set()

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        self.groups |= set(caller.groups)
        return "platform" in caller.groups or "system:masters" in caller.groups


def make_request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": list(headers)})


@pytest.mark.parametrize(
    "headers",
    [
        ((USER, b"eve"), (GROUPS, b"system:masters")),
        ((USER, b"eve"), (GROUPS, b"platform")),
        ((USER, b"eve"), (b"X-Forwarded-Groups".lower(), b"platform"), (GROUPS, b"platform")),
    ],
)
async def test_groups_count_only_where_the_installation_names_their_header(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    reviews = Groups()
    with pytest.raises(NotAllowed, match="hami-viewer"):
        await ReviewedIdentity(reviews, proxy=True).viewer(make_request(*headers), [])

    assert reviews.groups == {"system:authenticated"}


async def test_groups_of_the_named_header_count() -> None:
    reviews = Groups()
    identity = ReviewedIdentity(reviews, proxy=True, groups_header="X-Forwarded-Groups")
    viewer = await identity.viewer(make_request((USER, b"ann"), (GROUPS, b"nlp, platform ,")), [])

    assert (viewer.name, viewer.namespaces) == ("ann", None)
    assert reviews.groups == {"nlp", "platform", "system:authenticated"}
    # Another spelling is another header.
    other = make_request((USER, b"ann"), (b"x_forwarded_groups", b"platform"))
    with pytest.raises(NotAllowed):
        await identity.viewer(other, [])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ((), "sent no user"),
        (((USER, b""),), "sent no user"),
        (((USER, b"ann"), (USER, b"admin")), "sent no user"),
        (((USER, b"system:admin"),), "'system:admin': names that begin with 'system:'"),
        (((USER, b"eve"), (GROUPS, b"a,system:masters")), "'system:masters'"),
        (((USER, b"eve"), (GROUPS, b"platform"), (GROUPS, b"nobody")), "2 headers"),
        (((USER, b"eve"), (GROUPS, b"x" * 20_000)), "20000 characters: at most 16384"),
    ],
)
async def test_headers_that_a_proxy_does_not_send_are_refused(
    headers: tuple[tuple[bytes, bytes], ...], message: str
) -> None:
    identity = ReviewedIdentity(Groups(), proxy=True, groups_header="X-Forwarded-Groups")
    with pytest.raises(Unauthenticated, match=message):
        await identity.viewer(make_request(*headers), [])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
async def test_open_pages_do_not_answer_under_another_sites_name(host: str) -> None:
    with pytest.raises(NotAllowed, match="localhost"):
        await LoopbackOnly().viewer(asking(host=host), [])


@pytest.mark.parametrize(
    "host", ["localhost:9396", "127.0.0.1:1", "[::1]:80", "[::1]", "LOCALHOST"]
)
async def test_open_pages_answer_under_this_machines_names(host: str) -> None:
    assert (await LoopbackOnly().viewer(asking(host=host), [])).namespaces is None


@pytest.mark.parametrize("identity", ["none", "proxy"])
@pytest.mark.parametrize("bind", ["0.0.0.0:9396", "[::]:9396", "10.0.0.1:1", "pages.example:1"])
def test_names_are_not_shown_to_a_network_that_is_not_asked(bind: str, identity: str) -> None:
    with pytest.raises(InvalidRequest, match="HAMI_METRICS_PAGES_BIND"):
        check_bind(bind, identity)  # type: ignore[arg-type]  # of the parameters
    check_bind(bind, "token")


def test_a_port_that_only_this_machine_reaches_may_be_bound_anywhere() -> None:
    check_bind("0.0.0.0:9398", "none", published_locally=True)
    with pytest.raises(InvalidRequest, match="any client could then claim to be any user"):
        check_bind("0.0.0.0:9398", "proxy", published_locally=True)


@pytest.mark.parametrize("bind", ["127.0.0.1:9396", "localhost:0", "[::1]:0"])
def test_the_loopback_device_needs_no_identity(bind: str) -> None:
    check_bind(bind, "none")
