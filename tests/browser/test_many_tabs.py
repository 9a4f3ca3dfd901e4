"""A browser allows six connections to a host: eight tabs share one stream and all update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.pages.service import Service
from tests.browser.chromium import SIZE, live, watch
from tests.servers import psql
from tests.waiting import PATIENCE_S

TABS = 8


@contextmanager
def tabs(browser: Any, url: str, number: int) -> Iterator[list[Any]]:
    """Tabs of one profile, all of them visible; what one complains of fails the test."""
    profile = browser.new_context(base_url=url, viewport=SIZE)
    profile.set_default_timeout(1000 * PATIENCE_S)
    complaints: list[str] = []
    try:
        opened = []
        for _ in range(number):
            page = profile.new_page()
            watch(page, complaints)
            opened.append(page)
        yield opened
        assert not complaints, complaints
    finally:
        profile.close()


def cordon(pages: Service, index: int, reason: str) -> None:
    psql(
        pages.dsn,
        f"UPDATE devices SET healthy = false, health_reason = '{reason}', updated_at = now()"
        f" WHERE node = 'n0002' AND index = {index}",
    )


def test_eight_tabs_at_once_all_update(browser: Any, pages: Service) -> None:
    with tabs(browser, pages.url, TABS) as opened:
        for page in opened:
            page.goto("/")
            live(page)
        cordon(pages, 3, "eight tabs")
        for page in opened:
            page.locator('[id="n.n0002"] .c[aria-label*="eight tabs"]').wait_for()
        # The one that opened the stream goes; the others have it still.
        opened[0].close()
        cordon(pages, 4, "seven tabs")
        for page in opened[1:]:
            page.locator('[id="n.n0002"] .c[aria-label*="seven tabs"]').wait_for()


def test_a_change_that_comes_while_somebody_types_is_shown_when_they_are_done(
    browser: Any, pages: Service
) -> None:
    with tabs(browser, pages.url, 1) as [page]:
        page.goto("/nodes/n0002")
        live(page)
        page.locator("input[name=at]").focus()
        cordon(pages, 6, "while typing")
        seen = page.evaluate("window.hamiUpdates || 0")
        while page.evaluate("window.hamiUpdates || 0") <= seen + 1:
            page.wait_for_timeout(200)
        assert page.locator("#card-6", has_text="while typing").count() == 0
        page.keyboard.press("Escape")
        page.locator("#card-6", has_text="while typing").wait_for()
