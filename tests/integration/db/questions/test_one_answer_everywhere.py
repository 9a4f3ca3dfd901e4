"""Answers are the same by command, by API and in SQL, and show only one's own namespaces."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import orjson
import pytest
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.questions.asking import Asking, LocalViewers, Seal, TokenViewers
from hami_metrics.questions.routes import bill_routes, question_routes
from hami_metrics.routes import create_app
from hamicommon.access.checks import Access, ApiCaller, Right
from hamicommon.ledger.database import open_database
from hamicommon.ledger.questions import answer, questions
from hamicommon.ledger.showback import PriceList
from hamicommon.process.http_server import serving
from hamicommon.settings import PostgresSettings
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from typer.testing import CliRunner

from tests.integration.db.questions.four_days import NOW, Filled
from tests.integration.db.questions.test_named_questions import ENDED, what_is_needed

PAST_MOMENT = NOW - timedelta(hours=1)
LIVE = {"age_s", "sick_s", "expected_s", "stale", "late_count", "last_at"}
"""Columns that are about the moment of asking."""
Hamictl = Callable[..., Awaitable[Any]]


@pytest.fixture
async def url(filled: Filled) -> AsyncIterator[str]:
    settings = PostgresSettings(dsn=SecretStr(filled.dsn))
    async with open_database(settings, application="test") as ledger:
        viewers = LocalViewers()
        asking = Asking(ledger, viewers, Seal("secret"), ShowOwners.NAMES)
        routers = [question_routes(asking, viewers), bill_routes(asking, viewers, None)]
        async with serving(
            create_app(CollectorRegistry(), list, None, routers), "127.0.0.1:0"
        ) as port:
            yield f"http://127.0.0.1:{port}"


@pytest.fixture
def hamictl(url: str, tmp_path: Path) -> Hamictl:
    environment = {"HAMI_FOLDER": str(tmp_path), "HAMI_METRICS_URL": url, "HAMICTL_UTC": "1"}

    async def run(*argv: str, status: int = ExitCode.DONE) -> Any:
        done = await asyncio.to_thread(CliRunner().invoke, app, argv, env=environment)
        assert done.exit_code == status, (argv, done.output)
        return done

    return run


def asked_about(name: str) -> dict[str, str]:
    """Return the question's needed parameters, with past times, so that its answer is constant."""
    times = {"at": PAST_MOMENT, "until": PAST_MOMENT, "since": PAST_MOMENT - timedelta(hours=30)}
    takes = {each.name for each in questions()[name].parameters}
    given = {key: str(value) for key, value in what_is_needed(name).items()}
    return given | {key: at.isoformat() for key, at in times.items() if key in takes}


def without(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in LIVE} for row in rows]


@pytest.mark.parametrize("name", list(questions()))
async def test_command_api_and_sql_agree(
    filled: Filled, url: str, hamictl: Hamictl, name: str
) -> None:
    about = asked_about(name)
    connection = await asyncpg.connect(filled.dsn)
    try:
        in_sql = await answer(connection, name, about, limit=20_000)
    finally:
        await connection.close()
    async with httpx.AsyncClient(base_url=url) as http:
        found = await http.get(f"/api/v1/questions/{name}", params={**about, "limit": "20000"})
    given = [f"{key}={value}" for key, value in about.items()]
    document = json.loads((await hamictl("sql", name, *given, "-o", "json")).stdout)

    rows = json.loads(orjson.dumps(in_sql.rows, option=orjson.OPT_UTC_Z))
    assert without(found.json()["rows"]) == without(rows)
    assert without(document["items"]) == without(rows)


async def test_usage_shows_what_its_questions_answer(hamictl: Hamictl) -> None:
    async def items(*argv: str) -> list[dict[str, Any]]:
        return list(json.loads((await hamictl(*argv, "-o", "json")).stdout)["items"])

    then = PAST_MOMENT.isoformat()
    pod = f"{ENDED.namespace}/{ENDED.pod_name}"
    ended = datetime.fromtimestamp(ENDED.ended or 0, UTC)
    held = await items("usage", "pod", pod, "--at", ended.isoformat())
    assert [(row["pod_name"], row["device_uuid"]) for row in held] == [(ENDED.pod_name, ENDED.uuid)]
    assert await items("usage", f"pod/{pod}", "--at", ended.isoformat()) == held

    of_card = await items("usage", "card", ENDED.uuid, "--at", then)
    of_node = await items("usage", "node", ENDED.node, "--at", then)
    assert {row["device_uuid"] for row in of_card} <= {ENDED.uuid}
    assert [row for row in of_node if row["device_uuid"] == ENDED.uuid] == of_card
    since = (PAST_MOMENT - timedelta(days=30)).isoformat()
    wanted = await items("sql", "namespace-use", f"since={since}", f"until={then}")
    assert await items("usage", "--at", then) == wanted
    assert {row["namespace"] for row in await items("usage", "--idle", "--since", "3d")} == {
        "team-02"
    }
    shown = await items("usage", "--overasked", "--since", "3d")
    assert shown == await items("sql", "overasked", "since=-3d")


async def test_showback_shows_what_its_question_answers_and_that_it_adds_up(
    hamictl: Hamictl,
) -> None:
    span = (
        "--since",
        (PAST_MOMENT - timedelta(days=2)).isoformat(),
        "--until",
        PAST_MOMENT.isoformat(),
    )
    about = [f"since={span[1]}", f"until={span[3]}", "basis=cores"]
    lines = json.loads((await hamictl("sql", "showback", *about, "-o", "json")).stdout)["items"]

    whole = await hamictl("showback", *span, "--basis", "cores", "-o", "json")
    items = json.loads(whole.stdout)["items"]
    split = await hamictl("showback", *span, "--basis", "cores", "--by-type", "-o", "json")

    by_type = {
        (row["type"], row["kind"], row["namespace"] or ""): row["card_s"]
        for row in json.loads(split.stdout)["items"]
    }
    assert by_type == {(r["type"], r["kind"], r["namespace"]): r["card_s"] for r in lines}
    assert sum(row["card_s"] for row in items) == sum(row["card_s"] for row in lines)
    assert {row["cost"] for row in items} == {None}
    held = [row["card_s"] for row in items if row["kind"] == "held"]
    assert held == sorted(held, reverse=True)

    table = await hamictl("showback", *span)
    assert "the cards' own time, to the second" in table.stderr
    focus = await hamictl("showback", *span, "--focus")
    assert focus.stdout.startswith("BilledCost,")


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("usage", "rack", "r1"), ExitCode.WRONG_USAGE),
        (("usage", "pod"), ExitCode.WRONG_USAGE),
        (("usage", "--idle", "--overasked"), ExitCode.WRONG_USAGE),
        (("usage", "node", "n1", "--idle"), ExitCode.WRONG_USAGE),
        (("usage", "node", "n1", "-n", "a"), ExitCode.WRONG_USAGE),
        (("usage", "--at", "now", "--since", "1h"), ExitCode.WRONG_USAGE),
        (("usage", "card", "GPU-none"), ExitCode.NOT_FOUND),
        (("usage", "pod", "never/there"), ExitCode.NOT_FOUND),
        (("usage", "node", "n-nope"), ExitCode.NOT_FOUND),
        (("showback", "--month", "2026-13"), ExitCode.WRONG_USAGE),
        (("showback", "--month", "2999-01"), ExitCode.WRONG_USAGE),
        (("showback", "--month", "2026-01", "--since", "1h"), ExitCode.WRONG_USAGE),
        (("showback", "--since", "now", "--until", "-1h"), ExitCode.WRONG_USAGE),
        (("showback", "--basis", "money"), ExitCode.WRONG_USAGE),
        (("sql", "nothing-known"), ExitCode.NOT_FOUND),
        (("sql", "what-fits", "memory=much"), ExitCode.WRONG_USAGE),
        (("who", "GPU-none"), ExitCode.NOT_FOUND),
        (("who", "--at", "2999-01-01"), ExitCode.WRONG_USAGE),
        (("who", "--at", "2001-01-01"), ExitCode.DONE),
        (("describe", "node", "n-nope"), ExitCode.NOT_FOUND),
        (("describe", "pod", "never/there", "-o", "json"), ExitCode.NOT_FOUND),
        (("get", "nodes", "n-nope", "--at", "now"), ExitCode.NOT_FOUND),
        (("sql", "cards", "card=GPU-none"), ExitCode.NOT_FOUND),
        (("sql", "cards", "at=2999-01-01"), ExitCode.WRONG_USAGE),
        (("who",), ExitCode.DONE),
        (("who", "--since", "1h"), ExitCode.WRONG_USAGE),
        (("pending", "--at", "some day"), ExitCode.WRONG_USAGE),
    ],
)
async def test_a_verb_ends_as_the_table_has_it(
    hamictl: Hamictl, argv: tuple[str, ...], status: int
) -> None:
    done = await hamictl(*argv, status=status)

    if status is not ExitCode.DONE:
        assert done.stdout == ""
        assert len(done.stderr.strip()) > 10
    elif not done.stdout:
        assert done.stderr.startswith("No ")


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
