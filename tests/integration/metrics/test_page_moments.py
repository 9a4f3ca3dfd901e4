"""The time slider: at any moment the grid equals allocations_at() and a replayed model."""

import random
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import asyncpg
import httpx
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.app import create_pages
from hami_metrics.pages.entry import PagesNeeds
from hamicommon.ledger.database import open_database
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from bench.pages.ledger import fill

NOW = datetime.now(UTC).replace(microsecond=0)
CARDS, PODS, MOMENTS, SEED = 4, 26, 100, 21
GIB = 1024


@dataclass(frozen=True, slots=True)
class Held:
    """One grant of the model."""

    pod: str
    card: int
    gib: int
    cores: int
    began: datetime
    ended: datetime | None

    def at(self, moment: datetime) -> bool:
        return self.began <= moment and (self.ended is None or self.ended > moment)


def a_history() -> list[Held]:
    """Two days, uneven: nothing at all happens in the ten hours before the last one."""
    draw = random.Random(SEED)
    found = []
    for number in range(PODS):
        began = NOW - timedelta(seconds=draw.uniform(11 * 3600, 48 * 3600))
        ended = began + timedelta(seconds=draw.expovariate(1 / 7200))
        found.append(
            Held(
                pod=f"p{number}",
                card=draw.randrange(CARDS),
                gib=draw.randint(1, 6),
                cores=draw.randint(1, 5),
                began=began,
                ended=ended if ended < NOW - timedelta(hours=11) else None,
            )
        )
    last = Held("last", 0, 1, 1, NOW - timedelta(minutes=30), None)
    return [*found, last]


async def store(db: Any, history: list[Held]) -> None:
    await fill(db, nodes=1, cards=CARDS, pods=0)
    uuids = [row["uuid"] for row in await db.fetch("SELECT uuid FROM devices ORDER BY index")]
    events = []
    for one in history:
        identifier = str(uuid.uuid4())
        state = "allocated" if one.ended is None else "released"
        await db.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " reserved_at, ended_at) VALUES ($1, $2, 'nlp', $2, 1, 'n0001', $3, $4, $5)",
            *(identifier, one.pod, state, one.began, one.ended),
        )
        await db.execute(
            "INSERT INTO allocation_devices (allocation_id, container_index, position,"
            " container_name, role, device_uuid, vendor, memory_mib, core_percent)"
            " VALUES ($1, 0, 0, 'main', 'app', $2, 'NVIDIA', $3, $4)",
            *(identifier, uuids[one.card], one.gib * GIB, one.cores),
        )
        events.append((one.began, one.pod, 1, identifier, "reserved"))
        if one.ended is not None:
            events.append((one.ended, one.pod, 2, identifier, "released"))
    for at, pod, sequence, identifier, state in sorted(events):
        await db.execute(
            "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state,"
            " state, at) VALUES ($1, $2, $3, $4, $5, $6)",
            *(pod, sequence, identifier, "reserved" if sequence > 1 else None, state, at),
        )


@asynccontextmanager
async def pages(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the pages in this process, with the ledger as the only backend."""
    async with open_database(PostgresSettings(dsn=SecretStr(dsn)), application="test") as ledger:
        app, _, close = create_pages(
            PagesNeeds(
                ledger=ledger,
                reviews=None,
                proxy=False,
                show=ShowOwners.NAMES,
                secret="s",
                clock=lambda: datetime.now(UTC),
                bulkhead=Bulkhead(),
            )
        )
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield http
        await close()


CELL = re.compile(r'aria-label="(n0001 card \d+: [^"]*)"')


def read_labels(text: str) -> dict[int, Any]:
    """GiB, cores and pods of each card that holds something, as the grid's labels have them."""
    found = {}
    for label in CELL.findall(text):
        index, gib, cores = re.match(
            r"n0001 card (\d+): .*?, (\d+) of 80 GiB, (\d+) % cores", unescape(label)
        ).groups()
        pods = frozenset(re.findall(r"nlp/(\w+) (\d+) GiB", label))
        more = re.search(r" and (\d+) more", label)
        if pods:
            hidden = 0 if more is None else int(more[1])
            found[int(index)] = (int(gib), int(cores), len(pods) + hidden, pods)
    return found


def expect_labels(held: list[tuple[int, str, int, int]]) -> dict[int, Any]:
    """The same of (card, pod, GiB, cores); a label names the three largest."""
    by_card: dict[int, list[tuple[int, str, int, int]]] = {}
    for one in held:
        by_card.setdefault(one[0], []).append(one)
    return {
        card: (
            sum(gib for _, _, gib, _ in all_of),
            sum(cores for _, _, _, cores in all_of),
            len(all_of),
            frozenset(
                (pod, str(gib))
                for _, pod, gib, _ in sorted(all_of, key=lambda one: (-one[2], one[1]))[:3]
            ),
        )
        for card, all_of in by_card.items()
    }


async def test_at_a_hundred_moments_grid_question_and_model_agree(postgres_dsn: str) -> None:
    history = a_history()
    draw = random.Random(SEED)
    db = await asyncpg.connect(postgres_dsn)
    try:
        await store(db, history)
        edges = [one.began for one in history] + [one.ended for one in history if one.ended]
        moments = draw.sample(edges, MOMENTS // 2)
        moments += [NOW - timedelta(seconds=draw.uniform(60, 49 * 3600)) for _ in moments]
        index = {row["uuid"]: row["index"] for row in await db.fetch("SELECT * FROM devices")}
        async with pages(postgres_dsn) as http:
            for moment in moments:
                at = moment.isoformat()
                answer = await http.get("/history", params={"at": at})
                assert answer.status_code == 200, answer.text
                grid = read_labels(answer.text)
                rows = await db.fetch("SELECT * FROM allocations_at($1)", moment)
                question = [
                    (
                        index[r["device_uuid"]],
                        r["pod_name"],
                        r["memory_mib"] // GIB,
                        r["core_percent"],
                    )
                    for r in rows
                ]
                model = [(h.card, h.pod, h.gib, h.cores) for h in history if h.at(moment)]
                assert grid == expect_labels(model) == expect_labels(question), at
    finally:
        await db.close()
    assert len(moments) == MOMENTS


async def test_steps_go_to_every_change_and_skip_none(postgres_dsn: str) -> None:
    history = a_history()
    db = await asyncpg.connect(postgres_dsn)
    try:
        await store(db, history)
    finally:
        await db.close()
    changes = sorted({h.began for h in history} | {h.ended for h in history if h.ended})
    async with pages(postgres_dsn) as http:
        # Most windows contain no change: the step continues beyond them.
        start = "/history?window=1h"
        back = await walk(http, start, "previous")
        first = changes[0] - timedelta(hours=3)
        forth = await walk(http, f"{start}&at={first:%Y-%m-%dT%H:%M:%SZ}", "next")
    assert back == list(reversed(changes))
    assert forth == changes


async def walk(http: httpx.AsyncClient, address: str, step: str) -> list[datetime]:
    """The moments that the link leads to, one after another."""
    walked: list[datetime] = []
    while True:
        answer = await http.get(address)
        assert answer.status_code == 200, answer.text
        found = re.search(rf'id="{step}" href="(/history\?at=([^&]+)&[^"]*)"', answer.text)
        if found is None:
            return walked
        address = unescape(found[1])
        walked.append(datetime.fromisoformat(found[2]))
