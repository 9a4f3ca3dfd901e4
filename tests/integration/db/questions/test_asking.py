"""Answers over HTTP from a real ledger, for somebody who sees one namespace."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.questions.asking import Asking, Seal, TokenViewers
from hami_metrics.questions.routes import bill_routes, question_routes
from hami_metrics.routes import create_app
from hamicommon.access.checks import Access, ApiCaller, Right
from hamicommon.ledger.database import open_database
from hamicommon.ledger.showback import PriceList
from hamicommon.settings import PostgresSettings
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from tests.integration.db.questions.four_days import Filled

pytestmark = pytest.mark.integration

MINE = "team-01"
PRICES = PriceList(version="v1", currency="EUR", card_hour={"NVIDIA A100": Decimal("1.50")})


class Reviews:
    """`ann` may list the pods of one namespace."""

    async def whose(self, token: str) -> ApiCaller:
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        if caller.username == "operator":
            return str(right) == "get scheduler.hami.io"
        return str(right) in ("get questions.hami.io", f"list pods in namespace {MINE}")


@pytest.fixture
async def client(filled: Filled) -> AsyncIterator[httpx.AsyncClient]:
    settings = PostgresSettings(dsn=SecretStr(filled.dsn))
    async with open_database(settings, application="test") as ledger:
        viewers = TokenViewers(Access(Reviews()))
        asking = Asking(ledger, viewers, Seal("secret"), ShowOwners.SIZES)
        routers = [question_routes(asking, viewers), bill_routes(asking, viewers, PRICES)]
        app = create_app(CollectorRegistry(), list, None, routers)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://metrics") as opened:
            yield opened


async def get_as(client: httpx.AsyncClient, path: str, token: str) -> httpx.Response:
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer


async def pages(client: httpx.AsyncClient, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    path = "/api/v1/questions/what-runs-where?limit=40"
    found = (await get_as(client, path, token)).json()
    rows += found["rows"]
    while found["next"] is not None:
        assert not any(row["pod_name"] in found["next"] for row in rows if row["pod_name"])
        found = (await get_as(client, f"{path}&after={found['next']}", token)).json()
        rows += found["rows"]
    return rows


async def test_others_slices_are_there_with_their_sizes_and_without_their_names(
    client: httpx.AsyncClient,
) -> None:
    everything = await pages(client, "operator")
    shown = await pages(client, "ann")

    assert {row["namespace"] for row in everything} > {MINE}
    assert len(shown) == len(everything)
    assert {row["namespace"] for row in shown} == {MINE, "other"}
    for whole, part in zip(everything, shown, strict=True):
        if whole["namespace"] == MINE:
            assert part == whole
            continue
        assert part["pod_name"] is None
        assert part["allocation_id"] is None
        assert part["memory_bytes"] == whole["memory_bytes"]
        assert whole["pod_name"] not in str(part)


async def test_an_answer_has_its_moment_in_rfc_3339_and_null_for_what_is_not_known(
    client: httpx.AsyncClient,
) -> None:
    found = (await get_as(client, "/api/v1/questions/cards?limit=1", "ann")).json()

    assert found["apiVersion"] == "hami.io/v1"
    assert found["question"] == "cards"
    assert found["asOf"].endswith("Z")
    assert found["rows"][0]["used_memory_bytes"] is None
    assert found["unknown"]["used_memory_bytes"].startswith("no sample of the card")


async def test_a_bill_for_one_namespace_adds_up_to_the_same_cards(
    client: httpx.AsyncClient,
) -> None:
    span = "since=-2d&until=-1h"
    whole = (await get_as(client, f"/api/v1/showback?{span}", "operator")).json()
    mine = (await get_as(client, f"/api/v1/showback?{span}", "ann")).json()
    table = (await get_as(client, f"/api/v1/showback?{span}&format=csv", "ann")).text
    focus = (await get_as(client, f"/api/v1/showback?{span}&format=focus", "ann")).text

    assert abs(whole["card_s"] - 800 * 47 * 3600) <= 800
    assert {line["namespace"] for line in mine["lines"]} == {MINE, "other", None}
    assert abs(mine["card_s"] - whole["card_s"]) <= 800
    rows = list(csv.DictReader(io.StringIO(table)))
    assert rows[-1]["kind"] == "sum"
    assert int(rows[-1]["card_s"]) == sum(int(row["card_s"]) for row in rows[:-1])
    charges = list(csv.DictReader(io.StringIO(focus)))
    assert {row["SubAccountId"] for row in charges} >= {MINE, "other", "idle"}
