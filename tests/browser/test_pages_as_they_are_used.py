"""Every page with and without JavaScript, at a moment of the past, and live."""

from __future__ import annotations

from typing import Any

import pytest

from bench.pages.service import Service
from tests.browser.chromium import a_page, live
from tests.servers import psql

PAGES = (
    *("overview", "nodes", "pods", "node", "card", "pod", "waiting pod", "pending", "history"),
    "showback",
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_breaks_no_rule_of_its_policy_and_goes_live(
    browser: Any, pages: Service, addresses: dict[str, str], name: str
) -> None:
    # What the policy forbids is an error of the console, which `a_page` fails for.
    with a_page(browser, pages.url) as watched:
        watched.page.goto(addresses[name])
        live(watched.page)
        assert watched.page.locator("#trouble p").count() == 0


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_a_page_shows_the_same(
    browser: Any, pages: Service, addresses: dict[str, str], name: str
) -> None:
    with (
        a_page(browser, pages.url, java_script_enabled=False) as plain,
        a_page(browser, pages.url) as scripted,
    ):
        texts = []
        for watched in (plain, scripted):
            watched.page.goto(addresses[name])
            texts.append(watched.page.locator("main thead, #grid, main h2").all_inner_texts())
        assert texts[0] == texts[1]
        assert plain.page.locator("#live").inner_text() == "snapshot"
        # No control stands there that does nothing without a script.
        assert not plain.page.locator("#theme").is_visible()
        assert not plain.page.locator("#help").is_visible()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_shows_a_moment_of_the_past_and_its_links_stay_there(
    browser: Any, pages: Service, addresses: dict[str, str], name: str
) -> None:
    moment = addresses["a moment of the past"].partition("?at=")[2]
    with a_page(browser, pages.url) as watched:
        watched.page.goto(f"{addresses[name]}?at={moment}")
        assert watched.page.locator(".pastmark").inner_text() == "PAST"
        assert watched.page.locator("body").get_attribute("data-live") == ""
        links = watched.page.locator("nav a[href^='/'], main a[href^='/']").evaluate_all(
            "(all) => all.map((it) => it.getAttribute('href'))"
        )
        assert links
        assert [link for link in links if "at=" not in link] == []


def test_a_change_comes_to_an_open_page_without_a_hand(
    browser: Any, pages: Service, addresses: dict[str, str]
) -> None:
    with (
        a_page(browser, pages.url) as grid,
        a_page(browser, pages.url) as node,
    ):
        grid.page.goto("/")
        node.page.goto("/nodes/n0003")
        for watched in (grid, node):
            live(watched.page)
        psql(
            pages.dsn,
            "UPDATE devices SET cordoned = true, updated_at = now()"
            " WHERE node = 'n0003' AND index = 7",
        )
        grid.page.locator('[id="n.n0003"] .c[aria-label*="cordoned"]').wait_for()
        node.page.locator("#card-7", has_text="cordoned").wait_for()
