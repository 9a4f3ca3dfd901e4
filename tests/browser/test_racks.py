"""Nodes that stand together by rack: their display, by keyboard, and while cards change."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bench.pages.service import service
from tests.browser.chromium import a_page, live, serious
from tests.browser.racks import stand_in_racks
from tests.servers import psql

WITHOUT = "without a rack or zone"
GROUPS = """() => [...document.querySelectorAll("#grid details")].map((group) => ({
    name: group.querySelector("summary").firstChild.textContent.trim(),
    sums: [...group.querySelectorAll("[data-sum]")].map((it) => Number(it.textContent)),
    nodes: [...group.querySelectorAll("li")].map((line) => line.id.slice(2)),
    open: group.open,
}))"""
FIRST_FOLDED = """() => {
    const lines = [...document.querySelectorAll("#grid li")];
    const line = lines.find((one) => !one.closest("details").open) || lines.at(-1);
    const cells = [...line.querySelectorAll(".c")];
    const index = cells.findIndex((it) => !it.matches(".sick, .unkn, .shut"));
    cells[index].dataset.same = "1";
    document.getElementById("main").dataset.same = "1";
    return [line.id.slice(2), index];
}"""
FOCUSED = "document.activeElement.getAttribute('aria-label') || ''"


@dataclass(frozen=True, slots=True, kw_only=True)
class Racked:
    """A service over nodes in racks."""

    url: str
    dsn: str
    nodes: int

    def groups(self) -> dict[str, list[str]]:
        """By rack, the nodes in it, as the ledger has them; those without one last."""
        rows = psql(
            self.dsn,
            f"SELECT coalesce(node_group, '{WITHOUT}'), string_agg(name, ' ' ORDER BY name)"
            " FROM nodes GROUP BY node_group ORDER BY node_group NULLS LAST",
        )
        return {name: nodes.split() for name, nodes in (row.split("|") for row in rows.split("\n"))}

    def sums(self, rack: str) -> list[int]:
        """Cards of a rack that are held, free, and unhealthy."""
        found = psql(
            self.dsn,
            "SELECT count(*) FILTER (WHERE used_slots > 0), count(*) FILTER (WHERE healthy AND NOT"
            " cordoned AND used_slots = 0 AND used_memory_mib = 0), count(*) FILTER (WHERE NOT"
            " healthy) FROM devices d JOIN nodes n ON n.name = d.node"
            f" WHERE coalesce(n.node_group, '{WITHOUT}') = '{rack}'",
        )
        return [int(one) for one in found.split("|")]

    def card(self, node: str, index: int, change: str) -> None:
        psql(
            self.dsn,
            f"UPDATE devices SET {change}, updated_at = now()"
            f" WHERE node = '{node}' AND index = {index}",
        )


@pytest.fixture(scope="module", params=[3, 1000], ids=["3 nodes", "1000 nodes"])
def racked(browser: Any, request: pytest.FixtureRequest) -> Iterator[Racked]:
    """Asked for after the browser, which may lack."""
    nodes = request.param
    with service(nodes, pods=16 * nodes, durable=False) as running:
        stand_in_racks(running.dsn, nodes)
        yield Racked(url=running.url, dsn=running.dsn, nodes=nodes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_overview_has_a_part_for_each_rack_with_its_sums(
    browser: Any, racked: Racked, scheme: str
) -> None:
    with a_page(browser, racked.url, color_scheme=scheme) as watched:
        page = watched.page
        page.goto("/")
        live(page)
        shown = page.evaluate(GROUPS)

        assert [(one["name"], one["nodes"]) for one in shown] == list(racked.groups().items())
        assert [one["sums"] for one in shown] == [racked.sums(one["name"]) for one in shown]
        # Folded: racks of a large cluster but the first and those where something is wrong.
        folded = [one for one in shown if not one["open"]]
        assert bool(folded) == (racked.nodes > 100)
        assert [one["name"] for one in folded if one["sums"][2]] == []
        assert serious(page) == []

        page.locator("#grid summary").first.click()
        assert not page.evaluate(GROUPS)[0]["open"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_of_nodes_has_a_line_above_each_rack(
    browser: Any, racked: Racked, scheme: str
) -> None:
    expected = [
        *((name, node) for name, nodes in racked.groups().items() for node in nodes),
    ][:100]
    with a_page(browser, racked.url, color_scheme=scheme) as watched:
        page = watched.page
        page.goto("/nodes?sort=group")
        live(page)
        shown = []
        for part in page.locator("#rows tbody").all():
            rack = part.locator(".group th").evaluate("(it) => it.firstChild.textContent.trim()")
            nodes = part.locator("tr:not(.group) th a").all_inner_texts()
            shown += [(rack, node) for node in nodes]

        assert shown == expected
        assert serious(page) == []


def test_by_the_keyboard_one_goes_from_rack_to_rack_and_past_one_that_is_folded(
    browser: Any, racked: Racked
) -> None:
    racks = racked.groups()
    first = next(iter(racks))
    with a_page(browser, racked.url) as watched:
        page = watched.page
        page.goto("/?open=all")
        live(page)
        page.locator("#grid .c[tabindex='0']").focus()
        assert page.evaluate(FOCUSED).split()[0] == racks[first][0]
        for _ in range(8 * len(racks[first])):
            page.keyboard.press("ArrowRight")
        second = list(racks)[1]
        assert page.evaluate(FOCUSED).split()[0] == racks[second][0]
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(FOCUSED).split()[0] == racks[first][-1]

        # A folded rack is no stop, neither of Tab nor of an arrow.
        page.locator("#grid summary").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("!document.querySelector('#grid details').open")
        page.locator("#grid .c[tabindex='0']").first.wait_for()
        page.locator("#main").focus()
        page.keyboard.press("j")
        assert page.evaluate(FOCUSED).split()[0] == racks[second][0]
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(FOCUSED).split()[0] == racks[second][0]

        page.locator("#grid summary").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("document.querySelector('#grid details').open")


def test_one_card_changes_in_place_and_its_rack_counts_it(browser: Any, racked: Racked) -> None:
    with a_page(browser, racked.url) as watched:
        page = watched.page
        page.goto("/")
        live(page)
        node, index = page.evaluate(FIRST_FOLDED)
        before = page.evaluate(GROUPS)
        sick = int(page.inner_text("#sick"))
        racked.card(node, index, "healthy = false, health_reason = 'xid 63'")

        cell = page.locator(f'[id="n.{node}"] .c[data-same]')
        page.locator(f'[id="n.{node}"] .c.sick[data-same][aria-label*="xid 63"]').wait_for()
        # In place: no other cell has come, and the page has not been loaded again.
        assert cell.count() == 1
        assert page.locator("#main[data-same]").count() == 1
        assert int(page.inner_text("#sick")) == sick + 1
        changed = [
            one for one, old in zip(page.evaluate(GROUPS), before, strict=True) if one != old
        ]
        assert [(one["name"], one["open"]) for one in changed] == [
            (next(name for name, nodes in racked.groups().items() if node in nodes), True)
        ]
        assert changed[0]["sums"] == racked.sums(changed[0]["name"])

        racked.card(node, index, "healthy = true, health_reason = ''")
        page.locator(f'[id="n.{node}"] .c:not(.sick)[data-same]').wait_for()
        now = [{**one, "open": None} for one in page.evaluate(GROUPS)]
        assert now == [{**one, "open": None} for one in before]
        assert page.inner_text("#sick") == str(sick)


def test_a_node_that_gets_another_rack_moves_there_and_what_was_folded_stays_so(
    browser: Any, racked: Racked
) -> None:
    racks = racked.groups()
    node = racks["rack-02"][0]
    with a_page(browser, racked.url) as watched:
        page = watched.page
        page.goto("/?open=all")
        live(page)
        page.locator("#grid summary").first.click()
        psql(racked.dsn, f"UPDATE nodes SET node_group = 'rack-00' WHERE name = '{node}'")
        try:
            page.locator('#grid details[data-group="rack-00"]').wait_for()
            shown = {one["name"]: one for one in page.evaluate(GROUPS)}
            assert {name: one["nodes"] for name, one in shown.items()} == racked.groups()
            page.wait_for_function(
                "!document.querySelector('#grid details[data-group=\"rack-01\"]').open"
            )
            assert shown["rack-00"]["open"]
        finally:
            psql(racked.dsn, f"UPDATE nodes SET node_group = 'rack-02' WHERE name = '{node}'")
        page.locator('#grid details[data-group="rack-00"]').wait_for(state="detached")


def test_a_line_of_the_list_that_has_the_focus_keeps_it_when_the_list_is_loaded_again(
    browser: Any, racked: Racked
) -> None:
    with a_page(browser, racked.url) as watched:
        page = watched.page
        page.goto("/nodes?sort=group")
        live(page)
        page.locator("#rows tbody tr a").nth(2).focus()
        link = page.evaluate("document.activeElement.getAttribute('href')")
        page.evaluate("document.getElementById('rows').dataset.before = '1'")
        node = link.rpartition("/")[2]
        racked.card(node, 0, "cordoned = true")
        page.locator("#rows:not([data-before])").wait_for()
        page.wait_for_function(
            "(link) => document.activeElement.getAttribute('href') === link", arg=link
        )
        assert "cordoned" in page.evaluate("document.activeElement.closest('tr').innerText")
        racked.card(node, 0, "cordoned = false")
