"""The pages in Chromium: `make test-pages`. Skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.pages.service import Service, service
from tests.browser.chromium import chromium, why_missing
from tests.browser.evil import EVIL
from tests.servers import psql

NODES = 3


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all cases; each has a profile of its own."""
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def pages(browser: Any) -> Iterator[Service]:
    """The service over a cluster of three nodes; asked for after the browser, which may lack."""
    with service(NODES, pods=16 * NODES, durable=False) as running:
        yield running


@pytest.fixture(scope="session")
def addresses(pages: Service) -> dict[str, str]:
    """One address of each page, and of each state of one that differs."""
    card = psql(pages.dsn, "SELECT uuid FROM devices WHERE used_slots > 1 ORDER BY uuid LIMIT 1")
    held = psql(
        pages.dsn,
        "SELECT namespace || '/' || pod_name FROM allocations ORDER BY reserved_at LIMIT 1",
    )
    waits = psql(
        pages.dsn, "SELECT namespace || '/' || pod_name FROM decisions ORDER BY at LIMIT 1"
    )
    ago = psql(
        pages.dsn,
        "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '5 min', 'YYYY-MM-DD\"T\"HH24:MIZ')",
    )
    return {
        "overview": "/",
        "nodes": "/nodes",
        "pods": "/pods",
        "node": "/nodes/n0001",
        "card": f"/cards/{card}",
        "pod": f"/pods/{held}",
        "waiting pod": f"/pods/{waits}",
        "pending": "/pending",
        "history": "/history",
        "showback": "/showback",
        "a moment of the past": f"/?at={ago}",
        "no such page": "/nodes/none",
        "no such choice": "/history?window=never",
    }


@pytest.fixture(scope="session")
def hostile_pages(browser: Any) -> Iterator[Service]:
    """The service over pods, reasons and cards whose every text is hostile."""
    evil = "(ARRAY[" + ", ".join(f"$evil${text}$evil$" for text in EVIL) + "])"
    text = evil + "[1 + abs(hashtext(pod_uid)) % " + str(len(EVIL)) + "]"
    with service(1, pods=16, waiting=len(EVIL), durable=False) as running:
        psql(
            running.dsn,
            f"UPDATE allocations SET pod_name = {text} || pod_uid, namespace = {text},"
            f" reason = {text}, created_by = {text}, owner_name = {text}",
            f"UPDATE decisions SET pod_name = {text}, namespace = {text}, summary = {text},"
            f" message = {text}, trace_id = {text},"
            f" reason_counts = jsonb_build_object({text}, 1)",
            f"UPDATE devices SET type = {evil}[1 + index % {len(EVIL)}], healthy = index > 1,"
            f" health_reason = {evil}[1 + index % {len(EVIL)}], updated_at = now()",
        )
        yield running


@pytest.fixture(scope="session")
def hostile(hostile_pages: Service) -> dict[str, str]:
    """One address of each page, and of each pod."""
    uids = psql(
        hostile_pages.dsn, "SELECT pod_uid FROM allocations UNION SELECT pod_uid FROM decisions"
    )
    card = psql(hostile_pages.dsn, "SELECT uuid FROM devices WHERE index = 0")
    return {
        "overview": "/",
        "nodes": "/nodes",
        "pods": "/pods",
        "node": "/nodes/n0001",
        "card": f"/cards/{card}",
        "pending": "/pending",
        "history": "/history",
        "showback": "/showback",
        "filtered": "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "not found": "/pods/%3Cimg%20src=x%3E/%3Cscript%3Ealert(1)",
        **{f"pod {number}": f"/pods/uid/{uid}" for number, uid in enumerate(uids.split())},
    }
