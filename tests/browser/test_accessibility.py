"""axe finds nothing serious on any page, light or dark; the keyboard alone goes everywhere."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.pages.service import Service
from tests import measured
from tests.browser.chromium import a_page, serious

KEYS_MOST = 12
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
        assert keys <= KEYS_MOST


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
