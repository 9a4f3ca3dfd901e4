"""Access to the page that names tenants."""

from __future__ import annotations

import httpx
import pytest
from hami_metrics.routes import create_app
from hamicommon.access.checks import Access, ApiCaller, Right, Unauthenticated
from hamicommon.errors import Unavailable
from prometheus_client import CollectorRegistry


class Reviews:
    """`scraper` may get /metrics, `other` may not."""

    async def whose(self, token: str) -> ApiCaller:
        if token == "away":
            raise Unavailable("Kubernetes API: connection refused")
        if token == "forged":
            raise Unauthenticated("the token is invalid: not known")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return caller.username == "scraper" and str(right) == "get /metrics"


async def get(path: str, token: str, *, guarded: bool = True) -> httpx.Response:
    access = Access(Reviews()) if guarded else None
    transport = httpx.ASGITransport(app=create_app(CollectorRegistry(), list, access))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://metrics") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("token", "status", "sentence"),
    [
        (
            "",
            401,
            "no token was sent: send Authorization: Bearer TOKEN of a user who may get /metrics",
        ),
        ("forged", 401, "the token is invalid"),
        (
            "other",
            403,
            "other may not get /metrics: ask an administrator to bind the ClusterRole hami-s",
        ),
        ("away", 503, "connection refused"),
    ],
)
async def test_the_page_that_names_tenants_wants_a_token_with_the_right(
    token: str, status: int, sentence: str
) -> None:
    answer = await get("/metrics", token)

    assert answer.status_code == status
    assert sentence in answer.json()["detail"]


async def test_who_may_scrape_scrapes_and_probes_need_no_token() -> None:
    assert (await get("/metrics", "scraper")).status_code == 200
    assert (await get("/metrics", "", guarded=False)).status_code == 200
    for path in ("/healthz", "/readyz"):
        assert (await get(path, "")).status_code == 200
