"""The time slider's page: a moment beside now, and a window that is played."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.pages.service import Service
from tests.browser.chromium import a_page
from tests.servers import psql


def at_of(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("at", [""])[0]


def test_cards_that_are_not_so_now_are_outlined_where_one_compares(
    browser: Any, pages: Service, addresses: dict[str, str]
) -> None:
    moment = at_of(addresses["a moment of the past"])
    psql(
        pages.dsn,
        "UPDATE devices SET healthy = false, health_reason = 'since then', updated_at = now()"
        " WHERE node = 'n0003' AND index = 2",
    )
    with a_page(browser, pages.url) as watched:
        page = watched.page
        page.goto(f"/history?at={moment}")
        assert page.locator(".c.differs").count() == 0
        page.get_by_text("compare with now").click()
        page.wait_for_url("**compare=1**")
        cell = page.locator('[id="n.n0003"] .c.differs[aria-label^="n0003 card 2:"]')
        assert cell.count() == 1
        assert "not so now" in cell.get_attribute("aria-label")
        # The way to another moment keeps comparing.
        assert "compare=1" in page.locator("#previous").get_attribute("href")


def test_a_window_is_played_until_it_is_stopped(browser: Any, pages: Service) -> None:
    # A run of an hour has a moment a minute: this one has so many to go that a busy machine stops
    # it before its end.
    moment = psql(
        pages.dsn,
        "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '50 min', 'YYYY-MM-DD\"T\"HH24:MIZ')",
    )
    with a_page(browser, pages.url) as watched:
        page = watched.page
        page.goto(f"/history?at={moment}&window=1h")
        page.get_by_text("play").click()
        page.wait_for_url(lambda url: at_of(url) > f"{moment[:-1]}:59Z")
        page.locator("#playing").click()
        page.wait_for_url(lambda url: "play" not in url)
        assert page.locator("#playing").count() == 0
