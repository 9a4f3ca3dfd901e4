"""Pages that stay open, in one tab and in eight."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.pages.service import Service
from tests import measured
from tests.browser.chromium import SIZE, a_page, live, watch
from tests.servers import psql
from tests.waiting import PATIENCE_S

UPDATES = 30
WARM_UP = 5
"""Updates until caches and compiled scripts have their size."""
GROWTH = 1.5
"""Bound on the growth of nodes and listeners during a stay; a leak has a factor of `UPDATES`."""
HIDDEN = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def change(pages: Service, node: str, index: int, cores: int) -> None:
    psql(
        pages.dsn,
        f"UPDATE devices SET used_core_percent = {cores}, updated_at = now()"
        f" WHERE node = '{node}' AND index = {index}",
    )


def measure_page(page: Any) -> dict[str, float]:
    """Return the page's heap, nodes and listeners after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


def stays(browser: Any, pages: Service, address: str, shown: str, updates: int) -> Any:
    """Return the page's state after `WARM_UP` changes of a card, and after all `updates`."""
    with a_page(browser, pages.url) as watched:
        watched.page.goto(address)
        live(watched.page)
        first = {}
        for number in range(1, updates + 1):
            cores = 1 + number % 90
            change(pages, "n0001", 2, cores)
            watched.page.locator(shown.format(cores=cores)).first.wait_for(state="attached")
            if number == WARM_UP:
                first = measure_page(watched.page)
        return first, measure_page(watched.page)


def flat(name: str, first: dict[str, float], last: dict[str, float], updates: int) -> None:
    measured.note(
        f"pages: {name} open for {updates} updates: heap {first['JSHeapUsedSize'] / 1e6:.1f} to"
        f" {last['JSHeapUsedSize'] / 1e6:.1f} MB, {first['Nodes']:.0f} to {last['Nodes']:.0f} nodes"
    )
    for what in ("Nodes", "JSEventListeners"):
        assert last[what] <= GROWTH * first[what], (name, what)


def test_an_overview_that_stays_open_holds_no_more_than_at_first(
    browser: Any, pages: Service
) -> None:
    cell = '[id="n.n0001"] .c[aria-label*=" {cores} % cores"]'

    flat("overview", *stays(browser, pages, "/", cell, UPDATES), UPDATES)


def test_a_nodes_page_that_is_loaded_again_and_again_holds_no_more_than_at_first(
    browser: Any, pages: Service
) -> None:
    cell = r"#card-2 td:text-matches('^\s*{cores} % / ')"

    flat("node", *stays(browser, pages, "/nodes/n0001", cell, UPDATES // 2), UPDATES // 2)


def test_a_tab_that_was_hidden_shows_what_changed_when_it_is_back(
    browser: Any, pages: Service
) -> None:
    with a_page(browser, pages.url) as watched:
        page = watched.page
        page.goto("/")
        live(page)
        page.evaluate(HIDDEN, True)
        for cores in (11, 12, 13):
            change(pages, "n0002", 1, cores)
        page.evaluate(HIDDEN, False)
        page.locator('[id="n.n0002"] .c[aria-label*=" 13 % cores"]').wait_for(state="attached")


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
