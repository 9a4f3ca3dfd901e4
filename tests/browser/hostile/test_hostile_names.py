"""Text that people write into pods stays text in a browser, under a policy without inline code."""

from typing import Any

import pytest

from bench.pages.service import Service
from tests.browser.chromium import a_page, live
from tests.browser.hostile.evil import EVIL
from tests.servers import psql


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_hostile_names_run_nothing_and_load_nothing(
    browser: Any, hostile: dict[str, str], hostile_pages: Service, javascript: bool
) -> None:
    with a_page(browser, hostile_pages.url, java_script_enabled=javascript) as watched:
        asked: list[str] = []
        watched.page.on("request", lambda request: asked.append(request.url))
        for name, path in hostile.items():
            watched.page.goto(path)
            shown = watched.page.inner_text("body")
            if name != "showback":
                assert "alert(1)" in shown, name
            assert watched.page.locator("main img, main iframe, main script").count() == 0, name
            assert watched.page.locator("a[href^='javascript:']").count() == 0, name
        watched.expect("404")
        assert {url.split("/")[2] for url in asked} == {hostile_pages.url.split("/")[2]}


def test_a_live_update_puts_hostile_text_into_cells_as_text(
    browser: Any, hostile_pages: Service
) -> None:
    with a_page(browser, hostile_pages.url) as watched:
        watched.page.goto("/")
        live(watched.page)
        quoted = EVIL[0].replace("'", "''")
        psql(
            hostile_pages.dsn,
            f"UPDATE devices SET healthy = false, health_reason = 'live {quoted}',"
            " updated_at = now() WHERE node = 'n0001' AND index = 0",
        )
        cell = watched.page.locator("#grid .c").first
        watched.page.locator("#grid .c[aria-label*='live <img']").wait_for()
        assert "sick" in cell.get_attribute("class").split()
        assert watched.page.locator("main img").count() == 0
