"""Clusters whose every text is hostile, and the addresses of their pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.pages.service import Service, service
from tests.browser.hostile.evil import EVIL
from tests.servers import psql


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
