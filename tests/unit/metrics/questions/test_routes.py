"""The JSON API of questions: the allowed users, the visible rows, and refused requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.questions.asking import Asking, LocalViewers, Seal, TokenViewers, Viewers
from hami_metrics.questions.routes import question_routes
from hami_metrics.routes import create_app
from hamicommon.access.checks import Access, ApiCaller, Right, Unauthenticated
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions import questions
from prometheus_client import CollectorRegistry

RIGHTS = {
    "operator": {"get scheduler.hami.io"},
    "ann": {"get questions.hami.io", "list pods in namespace team-a"},
    "nobody": set(),
}


class Reviews:
    """Three users: one sees all, one a namespace, one nothing."""

    async def whose(self, token: str) -> ApiCaller:
        if token not in RIGHTS:
            raise Unauthenticated("the token is invalid: not known")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return str(right) in RIGHTS[caller.username]


class NoLedger:
    """A ledger that fails when it is asked: the caller was let through."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        raise AssertionError("the ledger was asked")
        yield


def application(viewers: Viewers, show: ShowOwners = ShowOwners.SIZES) -> Any:
    asking = Asking(NoLedger(), viewers, Seal("secret"), show)
    return create_app(CollectorRegistry(), list, None, [question_routes(asking, viewers)])


async def get(
    path: str,
    token: str = "",
    *,
    viewers: Viewers | None = None,
    address: str = "127.0.0.1",
    host: str = "localhost:9395",
) -> httpx.Response:
    app = application(viewers or TokenViewers(Access(Reviews())))
    transport = httpx.ASGITransport(app=app, client=(address, 1234))
    headers = {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {})}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers=headers)


async def test_the_list_names_the_cluster_where_it_has_a_name() -> None:
    for name, expected in (("prod-eu", "prod-eu"), ("", None)):
        asking = Asking(NoLedger(), LocalViewers(), Seal("secret"), ShowOwners.SIZES)
        routes = question_routes(asking, LocalViewers(), name)
        app = create_app(CollectorRegistry(), list, None, [routes])
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            found = (await http.get("/api/v1/questions")).json()

        assert found.get("cluster") == expected
        assert found["items"]


async def test_the_list_has_every_question_with_what_it_takes() -> None:
    items = (await get("/api/v1/questions", "ann")).json()["items"]

    by_name: Mapping[str, Any] = {item["name"]: item for item in items}
    assert set(by_name) == set(questions())
    assert by_name["who-held-card"]["needs"] == [["card"], ["node"]]
    assert by_name["what-fits"]["parameters"][0] == {
        "name": "memory",
        "kind": "bytes",
        "meaning": "memory needed on one card",
        "default": "0",
        "required": False,
        "choices": [],
    }


@pytest.mark.parametrize(
    ("token", "path", "status", "sentence"),
    [
        ("", "", 401, "no token was sent"),
        ("forged", "", 401, "the token is invalid"),
        ("nobody", "", 403, "nobody may not get questions.hami.io"),
        ("ann", "/drift", 403, "ann may not ask drift: it is about all namespaces"),
        ("ann", "/waiting-pods?namespace=team-b", 403, "ann may not list pods in namespace team-b"),
        ("ann", "/what-runs-where?pod=x", 403, "add the parameter namespace"),
        ("operator", "/who-runs-where", 404, "did you mean what-runs-where?"),
        ("operator", "/nodes?limit=1e9", 400, "limit: '1e9' is not a number of rows"),
        ("operator", "/nodes?node=a&node=b", 400, "parameter 'node' appears more than once"),
        ("operator", "/nodes?after=gAAAAA", 400, "after: this key is not from this API"),
    ],
)
async def test_who_may_not_ask_is_answered_why(
    token: str, path: str, status: int, sentence: str
) -> None:
    answer = await get(f"/api/v1/questions{path}", token)

    assert answer.status_code == status
    assert sentence in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "localhost:9395", 200),
        ("::1", "[::1]:9395", 200),
        ("10.0.0.9", "localhost:9395", 403),
        ("127.0.0.1", "rebound.example:9395", 403),
        ("127.0.0.1", "", 403),
        ("127.0.0.1", "[", 403),
    ],
)
async def test_without_tokens_only_this_machine_is_answered(
    address: str, host: str, status: int
) -> None:
    answer = await get("/api/v1/questions", viewers=LocalViewers(), address=address, host=host)

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("metrics:9395", 200),
        ("localhost:19395", 200),
        ("rebound.example:9395", 403),
        ("", 403),
        ("[", 403),
    ],
)
async def test_where_only_this_machine_reaches_the_port_its_containers_are_answered(
    host: str, status: int
) -> None:
    viewers = LocalViewers(published=True)

    answer = await get("/api/v1/questions", viewers=viewers, address="172.18.0.9", host=host)

    assert answer.status_code == status


def test_a_position_is_read_by_who_sealed_it_alone() -> None:
    sealed = Seal("secret").close("names in it")

    assert "names" not in sealed
    assert Seal("secret").open(sealed) == "names in it"
    for seal, text in ((Seal("another"), sealed), (Seal("secret"), sealed[:-4] + "AAA=")):
        with pytest.raises(InvalidRequest, match="not from this API"):
            seal.open(text)
