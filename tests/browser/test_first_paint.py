"""Cost in a browser of the overview of 1000 nodes with 8 cards each; figures are printed.

A busy machine stretches every time, so the processor time of all of Chromium's processes for one
load of the page is what a budget holds for.
"""

from typing import Any

import pytest

from bench.pages.service import Service, service
from tests import measured
from tests.browser.chromium import a_page, live
from tests.servers import psql

NODES = 1000
ROUNDS = 3
LOAD_BUDGET_S = 2.5
"""Processor time of five processes together; two idle cores need much less for a load."""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
LOADED = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
ANSWERED = "performance.getEntriesByType('navigation')[0].responseEnd"


@pytest.fixture(scope="module")
def large(browser: Any) -> Any:
    """Asked for after the browser, which may lack."""
    with service(NODES, pods=16 * NODES, durable=False) as running:
        yield running


def cpu_s(browser: Any) -> float:
    """Processor time of all of the browser's processes so far."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return float(sum(each["cpuTime"] for each in found))


def test_the_overview_of_a_thousand_nodes_is_soon_there_and_one_update_is_short(
    browser: Any, large: Service
) -> None:
    with a_page(browser, large.url) as watched:
        page = watched.page
        page.goto("/pending")
        used, paint, loaded, answered = [], [], [], []
        for _ in range(ROUNDS):
            before = cpu_s(browser)
            page.goto("/")
            live(page)
            used.append(cpu_s(browser) - before)
            paint.append(page.evaluate(PAINT))
            loaded.append(page.evaluate(LOADED))
            answered.append(page.evaluate(ANSWERED))
        psql(
            large.dsn,
            "UPDATE devices SET cordoned = true, updated_at = now()"
            " WHERE uuid IN (SELECT uuid FROM devices ORDER BY uuid LIMIT 200)",
        )
        page.locator(".c[aria-label*='cordoned'] >> nth=150").wait_for(state="attached")
        update_ms = page.evaluate("window.hamiUpdateMs")
        elements = page.evaluate("document.getElementsByTagName('*').length")
    measured.note(
        f"overview of {NODES} nodes, best of {ROUNDS}: answer {min(answered):.0f} ms, first paint"
        f" {min(paint):.0f} ms, usable {min(loaded):.0f} ms, {min(used):.2f} s of Chromium's"
        f" processor time, {elements} elements; 200 cards changed: {update_ms:.0f} ms"
    )
    assert min(used) < LOAD_BUDGET_S
