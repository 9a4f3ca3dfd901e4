"""Pictures of every page for docs/screens: `scripts/browser -m tests.browser.screens`.

They show 3 and 1000 nodes, light and dark.
One more simulates deuteranopia, and two are of nodes that stand together by rack.
WebP, made by Chromium itself.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from hami_metrics.adapters.capacity import sum_up_showback

from bench.pages.service import Service, service
from tests.browser.chromium import a_page, chromium, live, why_missing
from tests.browser.racks import stand_in_racks
from tests.servers import REPOSITORY, psql

FOLDER = REPOSITORY / "docs" / "screens"
SIZES = (3, 1000)
QUALITY = 60
README = "overview-3-light"
"""The README's picture is PNG, too: not everything that shows a README shows WebP."""
TRIES = 20
SCHEMES = ("light", "dark")
LIVE = ("overview", "nodes", "pods", "node", "card", "pod", "pending")
RACKS = {"overview-racks": "/", "nodes-racks": "/nodes?sort=group"}


def addresses(dsn: str) -> dict[str, str]:
    """One of each page that has something to show."""
    card = psql(dsn, "SELECT uuid FROM devices WHERE node = 'n0002' AND used_slots > 1 LIMIT 1")
    waits = psql(dsn, "SELECT pod_uid FROM decisions ORDER BY at LIMIT 1")
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=30)
    return {
        "overview": "/",
        "nodes": "/nodes",
        "pods": "/pods",
        "node": "/nodes/n0002",
        "card": f"/cards/{card}",
        "pod": f"/pods/uid/{waits}",
        "pending": "/pending",
        "history": f"/history?at={past:%Y-%m-%dT%H:%M:%SZ}",
        "showback": "/showback",
    }


WAITS = """
UPDATE decisions SET request = replace(request::text, '"count": 1', '"count": 8')::jsonb,
       summary = 'no node of ' || candidates || ' has 8 cards with 81920 MiB free; ask for fewer'
                 || ' cards, or wait until a pod ends'
"""
"""Whole cards are free in the pictures' clusters: pods that ask for one of them would not wait."""
MEASURED = """
INSERT INTO namespace_rollups (namespace, bucket_start, bucket_s, slice_s, card_s, memory_mib_s,
    core_s, sample_count, memory_used_sum_bytes, core_percent_sum, idle_s)
SELECT a.namespace, date_trunc('day', now(), 'UTC'), 86400, 3600 * count(*),
       3600.0 / 81920 * sum(x.memory_mib), 3600 * sum(x.memory_mib), 36 * sum(x.core_percent),
       count(*), sum(x.memory_mib) * (30 + abs(hashtext(a.namespace)) % 60) / 100 * 1048576.0,
       sum(x.core_percent) * 0.6, 36.0 * count(*) * (abs(hashtext(a.namespace)) % 30)
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id GROUP BY a.namespace
ON CONFLICT ON CONSTRAINT pk_namespace_rollups DO UPDATE SET
    slice_s = excluded.slice_s, memory_mib_s = excluded.memory_mib_s, core_s = excluded.core_s,
    sample_count = excluded.sample_count, core_percent_sum = excluded.core_percent_sum,
    memory_used_sum_bytes = excluded.memory_used_sum_bytes, idle_s = excluded.idle_s
"""
"""The hourly sums of the service, which found no samples here."""


async def sum_up(dsn: str) -> None:
    """Sum up the hours of the bill, as the service does before a user opens the page."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(WAITS)
        # Of two days: a month of 8000 cards takes minutes to sum up.
        await connection.execute("UPDATE device_periods SET began_at = now() - interval '2 days'")
        await sum_up_showback(connection, datetime.now(UTC))
    finally:
        await connection.close()


def shoot(page: Any, path: Path, *, deficiency: str = "none") -> None:
    """Save a picture of the page's visible part."""
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
    picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    path.write_bytes(base64.b64decode(picture["data"]))
    session.detach()


def open_page(page: Any, address: str) -> None:
    """On a busy machine a statement may meet its time-out: a picture of that is none of a page."""
    for _ in range(TRIES):
        if page.goto(address).status == 200:
            return
        page.wait_for_timeout(3000)
    sys.exit(f"screens: {address} has no answer in time; try again on a quieter machine")


def shoot_all(browser: Any, running: Service, nodes: int, folder: Path) -> None:
    """Every page of this size."""
    for scheme in SCHEMES:
        with a_page(browser, running.url, color_scheme=scheme) as watched:
            for name, address in addresses(running.dsn).items():
                if name == "showback":
                    psql(running.dsn, MEASURED)
                open_page(watched.page, address)
                if name in LIVE:
                    live(watched.page)
                path = folder / f"{name}-{nodes}-{scheme}.webp"
                shoot(watched.page, path)
                if path.stem == README:
                    watched.page.screenshot(path=path.with_suffix(".png"))
            watched.expect("503")
    with a_page(browser, running.url, color_scheme="light") as watched:
        open_page(watched.page, "/")
        live(watched.page)
        watched.expect("503")
        path = folder / f"overview-{nodes}-deuteranopia.webp"
        shoot(watched.page, path, deficiency="deuteranopia")
    stand_in_racks(running.dsn, nodes)
    for scheme in SCHEMES:
        with a_page(browser, running.url, color_scheme=scheme) as watched:
            for name, address in RACKS.items():
                open_page(watched.page, address)
                live(watched.page)
                shoot(watched.page, folder / f"{name}-{nodes}-{scheme}.webp")
            watched.expect("503")


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(prog="screens", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(SIZES))
    args = parser.parse_args()
    missing = why_missing()
    if missing is not None:
        sys.exit(f"screens: {missing}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for nodes in args.nodes:
        with service(nodes, pods=16 * nodes, durable=False, buckets=36) as running:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda dsn=running.dsn: asyncio.run(sum_up(dsn))).result()
            with chromium() as browser:
                shoot_all(browser, running, nodes, args.folder)


if __name__ == "__main__":
    main()
