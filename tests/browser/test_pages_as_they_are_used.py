"""Every page with and without JavaScript, by keyboard, for screen readers, and at past moments."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bench.pages.service import Service
from tests import measured
from tests.browser.chromium import a_page, live, serious
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
        assert "different now" in cell.get_attribute("aria-label")
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


MAX_KEYS = 12
"""From the overview to a waiting pod's decision and back."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_violation(
    browser: Any, pages: Service, addresses: dict[str, str], scheme: str
) -> None:
    found: list[str] = []
    with a_page(browser, pages.url, color_scheme=scheme) as watched:
        for name, path in addresses.items():
            watched.page.goto(path)
            # The open list of keys and an open table are pages of their own, nearly.
            watched.page.evaluate(
                "document.querySelectorAll('main details').forEach((it) => { it.open = true; })"
            )
            found += [f"{name}: {violation}" for violation in serious(watched.page)]
        watched.expect("40")
    assert found == []


def test_a_waiting_pods_decision_is_twelve_keys_away_and_back(browser: Any, pages: Service) -> None:
    with a_page(browser, pages.url) as watched:
        page, keys = watched.page, 0
        page.goto("/")

        def press(key: str) -> None:
            nonlocal keys
            page.keyboard.press(key)
            keys += 1

        press("p")
        page.wait_for_url("**/pending")
        press("j")
        press("Enter")
        page.wait_for_url("**/pods/uid/*")
        assert "waiting" in page.inner_text("p.facts")
        assert page.locator("table#decision").is_visible()
        press("[")
        page.wait_for_url("**/pending")
        press("Escape")
        page.wait_for_url(lambda url: urlsplit(url).path == "/")
        measured.note(f"pages: {keys} keys from the overview to a waiting pod's decision and back")
        assert keys <= MAX_KEYS


def test_the_grid_is_one_stop_of_the_tab_key_and_arrows_move_in_it(
    browser: Any, pages: Service
) -> None:
    with a_page(browser, pages.url) as watched:
        page = watched.page
        page.goto("/")
        page.wait_for_selector("#grid .c[tabindex='0']")
        assert page.locator("#grid .c[tabindex='0']").count() == 1
        page.locator("#grid .c[tabindex='0']").focus()
        first = page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("ArrowRight")
        second = page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("ArrowLeft")
        assert first.startswith("n0001 card 0:")
        assert second.startswith("n0001 card 1:")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == first
        page.keyboard.press("Enter")
        page.wait_for_url("**/cards/*")


def test_the_first_stop_is_a_link_past_the_header(browser: Any, pages: Service) -> None:
    with a_page(browser, pages.url) as watched:
        page = watched.page
        page.goto("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
