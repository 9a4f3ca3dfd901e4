"""The pages in Chromium: `make test-pages`. Skipped, with the reason, if there is none."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.pages.service import Service, service
from tests.browser.chromium import chromium, why_missing
from tests.servers import psql

NODES = 3


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all cases; each has its own profile."""
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
