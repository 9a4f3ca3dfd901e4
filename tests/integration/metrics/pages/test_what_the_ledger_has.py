"""Pages show the ledger, now and in the past."""

import csv
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.pages.ledger import fill
from tests.integration.metrics.pages.running import pages, text


async def test_an_empty_ledger_is_shown_as_empty_with_the_next_step(
    postgres_dsn: str, nats_url: str
) -> None:
    async with pages(postgres_dsn, nats_url) as (app, http):
        assert app.pages is not None
        assert not app.pages.opened
        shown = await text(http, "/")

        assert "No GPU nodes have registered." in shown
        assert "hamictl doctor" in shown
        assert "ledger has no node" in await text(http, "/nodes/n1", 404)
        assert "ledger has no card" in await text(http, "/cards/GPU-1", 404)
        assert "there is no such page" in await text(http, "/metrics", 404)
        assert (await http.post("/")).status_code == 405


async def test_overview_node_and_card_show_what_the_ledger_has(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=3, cards=8, pods=48, waiting=3)
    held = await db.fetchval("SELECT count(*) FROM devices WHERE used_slots > 0")
    card = await db.fetchrow("SELECT uuid FROM devices WHERE node = 'n0001' AND index = 2")
    holders = await db.fetch(
        "SELECT a.namespace || '/' || a.pod_name AS pod FROM allocations a"
        " JOIN allocation_devices x ON x.allocation_id = a.id WHERE x.device_uuid = $1",
        card["uuid"],
    )
    async with pages(postgres_dsn, nats_url) as (_, http):
        overview = await text(http, "/")
        node = await text(http, "/nodes/n0001")
        one = await text(http, "/nodes/n0001/cards/2")

    assert '<b id="held">' + str(held) in overview
    assert '<b id="waiting">3' in overview
    assert "xid 79" in overview
    for row in holders:
        assert row["pod"] in overview
        assert row["pod"] in node
        assert row["pod"] in one
    assert card["uuid"] in one
    assert f"Held by <b>{len(holders)}</b> now" in one
    # Card 6 is not measured: unknown, which is no zero.
    assert re.search(r"\d / \? / 80 GiB", node)


async def test_every_node_and_every_pod_with_slices_is_on_its_list(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=30, cards=4, pods=240)
    pods = {
        (row[0], row[1])
        for row in await db.fetch(
            "SELECT namespace, pod_name FROM allocations WHERE ended_at IS NULL"
        )
    }
    async with pages(postgres_dsn, nats_url) as (_, http):
        nodes = await text(http, "/nodes")
        listed: list[str] = []
        path: str | None = "/pods"
        while path is not None:
            shown = await text(http, path)
            listed += re.findall(r'<th scope="row">\s*<a href="/pods/uid/[^"]+">([^<]+)</a>', shown)
            following = re.search(r'rel="next" href="([^"]+)"', shown)
            path = None if following is None else following[1].replace("&amp;", "&")
        [name] = {name for _, name in pods if name == sorted(name for _, name in pods)[0]}
        one = await text(http, f"/pods?q={name}")
        assert "leave it out" in await text(http, "/pods?first=-1", 400)
        assert "is not one of" in await text(http, "/nodes?sort=never", 400)

    assert all(f"/nodes/n{number:04}" in nodes for number in range(1, 31))
    assert sorted(listed) == sorted("/".join(pod) for pod in pods)
    assert name in one


async def test_the_page_of_a_group_has_its_pods_and_why_they_waited(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    insert = (
        "INSERT INTO decisions (pod_uid, namespace, pod_name, outcome, summary, group_key,"
        " group_size, wait_ended_at) VALUES ($1, 'ml', $2, 'refused', $3, 'group/ml/train', 8,"
        " $4::timestamptz)"
    )
    now = datetime.now(UTC)
    await db.execute(insert, "u1", "train-0", "group ml/train: <7> fit", now + timedelta(days=1))
    await db.execute(insert, "group/ml/train", "", "<7> of the 8 pods fit", now)
    async with pages(postgres_dsn, nats_url) as (_, http):
        pod = await text(http, "/pods/ml/train-0")
        page = await text(http, "/groups/ml/train")
        assert "ledger has no group" in await text(http, "/groups/ml/other", 404)
        assert '<b id="waiting">1' in await text(http, "/"), "the group itself is no pod"

    assert '<a href="/groups/ml/train">its group</a>' in pod
    assert "8 pods start together" in page
    assert '<a href="/pods/uid/u1">train-0</a>' in page
    assert "refused: &lt;7&gt; of the 8 pods fit" in page


async def test_lists_show_samples_until_five_minutes_are_summed_up(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=2, pods=4)
    held = await db.fetchval("SELECT count(*) FROM allocations WHERE ended_at IS NULL")
    await db.execute("DELETE FROM usage_rollups")
    async with pages(postgres_dsn, nats_url) as (_, http):
        nodes = await text(http, "/nodes")
        pods = await text(http, "/pods")
        await db.execute("DELETE FROM usage_samples")
        unknown = await text(http, "/pods")

    measured = r'<td class="number">[\d.]+ / [\d.]+ / [\d.]+ GiB</td>'
    assert len(re.findall(measured, nodes)) == 2
    granted = r'<td class="number">[\d.]+ [GM]iB / '
    assert len(re.findall(granted + r"[\d.]+ [GM]iB</td>", pods)) == held > 0
    assert len(re.findall(granted + r"\?</td>", unknown)) == held


async def test_the_window_of_a_young_system_begins_at_its_first_record(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=0)
    await db.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        " reserved_at) VALUES (gen_random_uuid(), 'u1', 'nlp', 'one-1', 1, 'n0001', 'reserved',"
        " now() - interval '10 minutes')"
    )
    await db.execute(
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, at)"
        " SELECT pod_uid, 1, id, state, reserved_at FROM allocations"
    )
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/history")

    found = re.search(r'id="slider" min="(\d+)" max="(\d+)"', shown)
    assert found is not None
    assert 600 < int(found[2]) - int(found[1]) < 700
    assert "1 changes in the window" in shown


async def test_a_waiting_pods_page_has_the_nearest_cards_and_what_each_lacks(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2, waiting=1)
    async with pages(postgres_dsn, nats_url) as (_, http):
        waiting = await text(http, "/pending")
        [path] = re.findall(r'href="(/pods/uid/\w+)">[\w-]+/waits-', waiting)
        shown = await text(http, path)
        then = await text(http, f"{path}?at={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")

    assert "Cards that come closest" in shown
    assert len(re.findall(r"<td>lacks [\d.]+ (?:GiB|MiB) of memory", shown)) == 2
    assert "hamictl explain" in shown
    assert "Cards that come closest" in then


async def test_a_page_of_the_past_is_of_that_moment(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=0)
    uuid = await db.fetchval("SELECT uuid FROM devices WHERE index = 0")
    began, ended = (datetime.now(UTC) - timedelta(minutes=m) for m in (60, 30))
    await db.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        " reserved_at, ended_at) VALUES (gen_random_uuid(), 'u1', 'nlp', 'gone-1', 1, 'n0001',"
        " 'released', $1, $2)",
        began,
        ended,
    )
    await db.execute(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent)"
        " SELECT id, 0, 0, 'main', 'app', $1, 'NVIDIA', 40960, 50 FROM allocations",
        uuid,
    )
    between = (began + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%MZ")
    before = (began - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%MZ")
    async with pages(postgres_dsn, nats_url) as (_, http):
        for path in ("/", "/nodes/n0001", f"/cards/{uuid}"):
            then = await text(http, f"{path}?at={between}")
            assert "nlp/gone-1" in then
            assert ">PAST</strong>" in then
            assert 'data-live=""' in then
        assert "nlp/gone-1" not in await text(http, "/")
        assert "nlp/gone-1" not in await text(http, f"/nodes/n0001?at={before}")
        assert "is in the future" in await text(http, "/?at=2999-01-01T00:00Z", 400)


async def test_a_pod_and_what_waits_show_the_stored_decision(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2, waiting=3)
    sentence = "no card of 1 nodes has 81920 MiB free"
    [granted] = await db.fetch("SELECT namespace, pod_name FROM allocations LIMIT 1")
    async with pages(postgres_dsn, nats_url) as (_, http):
        waiting = await text(http, "/pending")
        assert "<b>3</b> waiting" in waiting
        assert sentence in waiting
        assert 'id="waiting">3</b>' in await text(http, "/")
        found = re.findall(r'href="(/pods/uid/\w+)">([\w-]+/waits-\d)', waiting)
        assert len(found) == 3
        for path, name in found:
            for address in (path, f"/pods/{name}"):
                shown = await text(http, address)
                assert sentence in shown
                assert "<b>waiting</b>" in shown
        holds = await text(http, f"/pods/{granted['namespace']}/{granted['pod_name']}")
        assert "holds its slices" in holds
        assert "hamictl explain" not in holds
        assert "has no pod nlp/none" in await text(http, "/pods/nlp/none", 404)
        assert "No pods are waiting at that moment" in await text(
            http, "/pending?at=2026-01-01T00:00Z"
        )


async def test_history_steps_from_change_to_change(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=3)
    times = [row["at"] for row in await db.fetch("SELECT at FROM allocation_events ORDER BY at")]
    async with pages(postgres_dsn, nats_url) as (_, http):
        address, walked = "/history?window=1h", []
        while True:
            shown = await text(http, address)
            step = re.search(r'id="previous" href="(/history\?at=([^&]+)&[^"]*)"', shown)
            if step is None:
                break
            address = step[1].replace("&amp;", "&")
            walked.append(datetime.fromisoformat(step[2]))
    assert walked == list(reversed(times))


async def test_the_bill_adds_up_on_the_page_and_in_its_files(
    postgres_dsn: str, nats_url: str, db: Any, tmp_path: Path
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    prices = tmp_path / "prices.json"
    prices.write_text(
        '{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100-SXM4-80GB": "2.50"}}'
    )
    async with pages(postgres_dsn, nats_url, price_list=prices) as (_, http):
        # With a moment: pages written at different moments are of the same time.
        at = f"?at={datetime.now(UTC):%FT%TZ}"
        page = await text(http, f"/showback{at}")
        lines = list(csv.DictReader((await text(http, f"/showback.csv{at}")).splitlines()))
        bill = json.loads(await text(http, f"/showback.json{at}"))
        charges = list(csv.DictReader((await text(http, f"/showback-focus.csv{at}")).splitlines()))
    assert "✓ the rows add up" in page
    assert "cost EUR" in page
    whole = lines.pop()
    assert sum(int(line["card_s"]) for line in lines) == int(whole["card_s"]) > 0
    assert bill["card_s"] == int(whole["card_s"])
    assert sum(Decimal(line["cost"]) for line in lines) == Decimal(whole["cost"])
    assert sum(Decimal(line["BilledCost"]) for line in charges) == Decimal(bill["cost"])
    assert f"<b>{bill['cost']}</b>" in page


async def test_without_a_price_list_there_are_no_costs_and_no_charges(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/showback")
        assert "hami-metrics has no price list" in shown
        assert "FOCUS" not in shown
        assert "a FOCUS file needs prices" in await text(http, "/showback-focus.csv", 404)


def a_span(name: str, service: str, *, uid: str, begin: datetime, ms: float) -> str:
    """A line as services write it for a local system."""
    return json.dumps(
        {
            "name": name,
            "service": service,
            "context": {"trace_id": "a" * 32, "span_id": f"{name[:16]:0<16}"},
            "parent_id": None,
            "start_time": begin.isoformat(),
            "end_time": (begin + timedelta(milliseconds=ms)).isoformat(),
            "attributes": {"k8s.pod.uid": uid},
        }
    )


async def test_a_pods_page_has_the_spans_of_all_services_and_how_usual_each_step_is(
    postgres_dsn: str, nats_url: str, db: Any, tmp_path: Path
) -> None:
    await fill(db, nodes=1, cards=2, pods=2, waiting=6)
    # The pod that was decided on last: the hour before has the others.
    pod = await db.fetchrow("SELECT pod_uid, trace_id FROM decisions ORDER BY at DESC LIMIT 1")
    uid = pod["pod_uid"]
    began = datetime.now(UTC)
    steps = (("admission", "hami-webhook"), ("filter", "hami-scheduler"), ("<b>", "hami-agent"))
    for name, service in steps:
        line = a_span(name, service, uid=uid, begin=began, ms=100)
        (tmp_path / f"{service}.jsonl").write_text(f"{line}\nno span\n")
    changes = {"pages_traces": tmp_path, "pages_trace_url": "http://viewer/trace/{trace_id}"}
    async with pages(postgres_dsn, nats_url, **changes) as (_, http):
        shown = await text(http, f"/pods/uid/{uid}")
        other = await text(http, await _another(db, uid))

    assert "across all services" in shown
    for name, service in steps[:2]:
        assert f">{name}</text>" in shown.replace("\u2003", "")
        assert f"100.0 ms · {service}" in shown
    assert "&lt;b&gt;" in shown
    assert f'href="http://viewer/trace/{pod["trace_id"]}"' in shown
    took = r'1\.6 ms</td><td>.*?</td><td class="number">p100</td>'
    assert re.search(took, shown, re.DOTALL)
    assert "across all services" not in other


async def _another(db: Any, uid: str) -> str:
    found = await db.fetchval("SELECT pod_uid FROM decisions WHERE pod_uid <> $1 LIMIT 1", uid)
    return f"/pods/uid/{found}"


async def test_what_waits_stands_beside_the_card_that_is_nearest(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2, waiting=1)
    await db.execute("UPDATE devices SET used_memory_mib = 8192, used_slots = 1 WHERE index = 1")
    await db.execute("UPDATE devices SET used_memory_mib = 40960, used_slots = 1 WHERE index = 0")
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/pending")

    # 80 GiB are asked for.
    assert "n0001 card 1: lacks 8 GiB of memory; fits at 72 GiB" in shown
