"""One node that reports as much as the bus takes neither fills the database nor the memory."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hamicommon import events
from hamicommon.bus.client import Outgoing

from tests.integration.metrics.service import bus, report, sql, until
from tests.integration.metrics.test_killed_in_a_batch import process

FLOOD = 4
CARDS = 1000
ROUNDS = 60
REPORT_SAMPLES = CARDS * ROUNDS
MAX_PAUSE_S = 60 * (REPORT_SAMPLES / 25_000 - 1)
"""After a report a node that may store 25,000 samples a minute may store nothing for so long."""
MAX_MEMORY_MIB = 400
"""Memory of the process; the manifests allow 1024. Nearly 2 GiB before there was a bound."""


def make_large_report(number: int, now: datetime, *, copies: int) -> bytes:
    """Cards that were the same in all rounds, each so often."""
    rounds = [now - timedelta(seconds=number, milliseconds=each) for each in range(ROUNDS, 0, -1)]
    cards = [{"uuid": f"{n}", "index": 0, "type": ""} for n in range(CARDS)]
    return json.dumps(
        {
            "node": "hostile",
            "agent_id": "a",
            "sequence": number,
            "sampled_at": (now - timedelta(seconds=number)).isoformat(),
            "devices": [],
            "containers": [],
            "unchanged": [{"rounds": ROUNDS, "devices": cards}] * copies,
            "earlier_rounds": [at.isoformat() for at in rounds],
        },
        separators=(",", ":"),
    ).encode()


def memory_mib(pid: int) -> float:
    """The most that the process had."""
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 1024


async def test_a_node_that_reports_without_end_is_stopped_by_its_budget_and_others_are_stored(
    postgres_dsn: str, nats_url: str
) -> None:
    now = datetime.now(UTC)
    bodies = [make_large_report(number, now, copies=1) for number in range(FLOOD)]
    # And as large as the server takes them.
    bodies += [make_large_report(number, now, copies=28) for number in range(FLOOD, 2 * FLOOD)]
    stored_of = "SELECT count(*) FROM usage_samples WHERE node = $1"
    async with bus(nats_url) as client, sql(postgres_dsn) as db:
        assert 0.9 < max(map(len, bodies)) / client.max_payload_bytes < 1
        hostile = events.usage_subject("hostile")
        outgoing = [
            Outgoing(subject=hostile, data=body, message_id=f"flood-{number}")
            for number, body in enumerate(bodies)
        ]
        honest = report(1, now).model_dump_json().encode()
        outgoing.append(
            Outgoing(subject=events.usage_subject("n1"), data=honest, message_id="honest")
        )
        before = await client.letters.count()
        assert set(await client.publish_all(outgoing, timeout_s=30)) == {None}

        began_s = time.monotonic()
        async with process(postgres_dsn, nats_url) as child:

            async def all_read() -> bool:
                buried = await client.letters.count() - before
                # One that was stored may come again, and be buried then.
                taken = await db.fetchval(stored_of, "hostile") // REPORT_SAMPLES
                return await db.fetchval(stored_of, "n1") > 0 and buried + taken >= 2 * FLOOD

            await until("the honest report stored, and the flood stored or buried", all_read)
            assert memory_mib(child.pid) < MAX_MEMORY_MIB

        stored = await db.fetchval(stored_of, "hostile")
        assert stored >= REPORT_SAMPLES
        assert stored <= REPORT_SAMPLES * (1 + (time.monotonic() - began_s) / MAX_PAUSE_S)
        reasons = {letter.reason for letter in await client.letters.latest(2 * FLOOD)}
        assert any("more than 25000 samples a minute" in reason for reason in reasons)
        assert any("at most 100000 are read" in reason for reason in reasons)
