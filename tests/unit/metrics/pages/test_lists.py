"""All nodes and all pods as tables: filters, order, pages, and the visible names."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hami_metrics.domain.redaction import EVERYBODY, PageViewer
from hami_metrics.pages.app import FILES
from hami_metrics.pages.cluster import MeasuredUse, PageCluster
from hami_metrics.pages.feed import Outages, hanging_since, notices
from hami_metrics.pages.lists import (
    NODE_SORTS,
    POD_SORTS,
    PodCache,
    group_sums,
    node_lines,
    pod_lines,
    with_use,
)
from hami_metrics.pages.pending import pending_page
from hami_metrics.pages.rendering import CONTENT_SECURITY_POLICY, FOLDER, STATIC

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state, ago

GIB = 1024


def a_cluster() -> PageCluster:
    both = a_holder("both", "ads", 4 * GIB)
    state: PageCluster = a_state(
        a_node("n1", a_card(0, "n1", a_holder("train-1", "nlp", 8 * GIB), both)),
        a_node("n2", a_card(0, "n2", both), a_card(1, "n2", healthy=False)),
        a_node("n3", a_card(0, "n3", type="NVIDIA T4"), heard_s=600),
        use={"GPU-n1-0": MeasuredUse(memory_mib=2048.0, core_percent=40.0, at=NOW)},
    )
    return state


def test_a_node_that_nobody_measures_has_unknown_use_and_never_zero() -> None:
    n1, n2, n3 = node_lines(a_cluster(), text="", sort="name")

    assert (n1.used_mib, n1.core_used_percent, n1.granted_mib, n1.pods) == (2048.0, 40.0, 12288, 2)
    assert (n2.used_mib, n2.core_used_percent) == (None, None)
    assert (n2.sick, n2.sums.held, n2.granted_mib) == (1, 1, 4 * GIB)
    assert n3.silent


def a_sample(card: str, memory_mib: float | None, pod_uid: str) -> dict[str, Any]:
    return {
        "at": NOW,
        "device_uuid": card,
        "pod_uid": pod_uid,
        "container": "main",
        "memory_mib": memory_mib,
        "core_percent": 10.0,
    }


def test_use_of_a_pod_is_the_sum_of_its_slices_and_unknown_if_one_is() -> None:
    lines, _ = pod_lines(a_cluster(), EVERYBODY, text="both", owner="", sort="name")
    known = [a_sample("GPU-n1-0", 512.0, "uid-both"), a_sample("GPU-n2-0", 256.0, "uid-both")]
    other = a_sample("GPU-n1-0", 9.0, "uid-train-1")

    [measured] = with_use(lines, [*known, other])
    [half] = with_use(lines, [known[0], a_sample("GPU-n2-0", None, "uid-both")])

    assert measured.use == MeasuredUse(memory_mib=768.0, core_percent=20.0, at=NOW)
    assert half.use is not None
    assert half.use.memory_mib is None
    assert with_use(lines, [other])[0].use is None


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("name", ["n1", "n2", "n3"]),
        ("free", ["n2", "n3", "n1"]),
        ("used", ["n1", "n2", "n3"]),
        ("problems", ["n3", "n2", "n1"]),
    ],
)
def test_nodes_stand_in_the_order_that_was_chosen(sort: str, names: list[str]) -> None:
    lines = node_lines(a_cluster(), text="", sort=sort)

    assert [line.node.name for line in lines] == names


def test_nodes_are_found_by_their_name_and_their_cards_type() -> None:
    found = [node_lines(a_cluster(), text=text, sort="name") for text in ("N2", "t4", "t5")]

    assert [[line.node.name for line in lines] for lines in found] == [["n2"], ["n3"], []]


def test_lines_of_a_node_that_did_not_change_are_those_of_the_page_before() -> None:
    cache, before = PodCache(), a_cluster()
    first = cache.lines(before)
    n2 = a_node("n2", a_card(0, "n2", a_holder("new", "ads")))
    after = a_state(before.nodes["n1"], n2)

    second = cache.lines(after)

    assert [line.name for line in first] == ["train-1", "both"]
    assert [line.name for line in second] == ["train-1", "both", "new"]
    assert second[0] is first[0]
    assert [card.uuid for card in second[1].cards] == ["GPU-n1-0"]


def test_a_pod_is_one_line_over_all_its_cards() -> None:
    lines, of = pod_lines(a_cluster(), EVERYBODY, text="", owner="ads", sort="name")

    [both] = lines
    assert of == 2
    assert [card.uuid for card in both.cards] == ["GPU-n1-0", "GPU-n2-0"]
    assert (both.memory_mib, both.core_percent, both.use) == (8 * GIB, 60, None)
    assert both.since == NOW - timedelta(hours=1)


def test_pods_of_other_namespaces_are_neither_listed_nor_counted_nor_found() -> None:
    viewer = PageViewer(namespaces=frozenset({"nlp"}))

    lines, of = pod_lines(a_cluster(), viewer, text="", owner="", sort="name")
    assert ([line.name for line in lines], of) == (["train-1"], 1)
    assert pod_lines(a_cluster(), viewer, text="both", owner="", sort="name")[0] == []
    assert pod_lines(a_cluster(), viewer, text="", owner="ads", sort="name")[0] == []


@pytest.mark.parametrize("sort", [*POD_SORTS])
def test_every_order_of_pods_has_every_pod_once(sort: str) -> None:
    lines, _ = pod_lines(a_cluster(), EVERYBODY, text="", owner="", sort=sort)

    assert sorted(line.uid for line in lines) == ["uid-both", "uid-train-1"]


def test_every_order_that_a_page_offers_is_there() -> None:
    for sort in NODE_SORTS:
        assert len(node_lines(a_cluster(), text="", sort=sort)) == 3


def test_nodes_are_put_together_by_rack_with_their_sums() -> None:
    state = a_state(
        a_node("n1", a_card(0, "n1"), group="rack-2"),
        a_node("n2", a_card(0, "n2")),
        a_node("n3", a_card(0, "n3", a_holder()), a_card(1, "n3", healthy=False), group="rack-1"),
        a_node("n4", a_card(0, "n4", a_holder("x")), group="rack-2"),
    )

    lines = node_lines(state, text="", sort="group")

    assert [line.node.name for line in lines] == ["n3", "n1", "n4", "n2"]
    sums = {name: tuple(one.values()) for name, one in group_sums(lines).items()}
    assert sums == {"rack-1": (1, 1, 2, 1), "rack-2": (2, 1, 2, 0), "": (1, 0, 1, 0)}
    found = node_lines(state, text="Rack-2", sort="name")
    assert [line.node.name for line in found] == ["n1", "n4"]


# --- pods that wait: one line for those of one owner that wait alike


def waiting(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "since_at": ago(minutes=60 - number),
        "pod_uid": f"u{number}",
        "namespace": "nlp",
        "pod_name": f"batch-{number}",
        "last_at": ago(seconds=3),
        "attempt_count": 3,
        "card_count": 1,
        "memory_bytes": 40 * 2**30,
        "memory_ratio": None,
        "core_ratio": 0.3,
        "reason_code": "CardInsufficientMemory",
        "summary": "no card has 40 GiB free",
        "ahead_count": number,
        **changes,
    }


def test_pods_of_one_owner_that_wait_alike_are_one_line() -> None:
    reasons = [{"reason_code": "CardInsufficientMemory", "pod_count": 4, "oldest_at": ago(hours=1)}]
    rows = [*(waiting(n) for n in range(3)), waiting(9, namespace="vision")]
    page = pending_page(reasons, rows, EVERYBODY, "", None, NOW)

    assert [(line.namespace, line.name, line.count) for line in page.lines] == [
        ("nlp", "batch-0", 3),
        ("vision", "batch-9", 1),
    ]
    assert page.lines[0].asks == "1 x 40 GiB 30 % cores"
    assert page.total == 4


def test_who_may_not_list_a_namespace_sees_what_waits_without_names_and_sentences() -> None:
    viewer = PageViewer(namespaces=frozenset())
    [line] = pending_page([], [waiting(1, summary="quota of nlp")], viewer, "", None, NOW).lines

    assert (line.namespace, line.name, line.pod_uid) == ("other", "", "")
    assert line.because == "CardInsufficientMemory"


def test_a_request_that_was_not_recorded_is_unknown() -> None:
    row = waiting(1, card_count=None, memory_bytes=None, core_ratio=None)
    assert pending_page([], [row], EVERYBODY, "", None, NOW).lines[0].asks == "?"


def test_pods_that_kube_scheduler_does_not_ask_about_still_wait_and_are_counted() -> None:
    rows = [waiting(1, last_at=ago(minutes=11)), waiting(2, last_at=ago(minutes=9))]
    page = pending_page([], rows, EVERYBODY, "", None, NOW)

    assert (page.not_asked, page.lines[0].count) == (1, 2)


# --- which part is away is reported once, with what holds all the same; never of the past


AGO = NOW - timedelta(minutes=1)
STATE = a_state(a_node("n1", a_card()))


def parts(away: Outages) -> list[str]:
    return [notice.part for notice in notices(STATE, away, NOW)]


def test_nothing_is_reported_while_all_parts_are_there() -> None:
    assert notices(STATE, Outages(), NOW) == ()


@pytest.mark.parametrize("part", ["scheduler", "events"])
def test_a_part_that_restarts_is_not_away_yet(part: str) -> None:
    assert parts(Outages(**{part: NOW - timedelta(seconds=2)})) == []
    assert parts(Outages(**{part: NOW - timedelta(seconds=3)})) == [part]


def test_a_scheduler_that_is_connected_and_does_nothing_hangs() -> None:
    [notice] = notices(STATE, Outages(scheduler_hangs=AGO), NOW)

    assert notice.part == "scheduler"
    assert "has done nothing since 14:04:00: it hangs" in notice.text
    # For one without a connection only that is known.
    [gone] = notices(STATE, Outages(scheduler=AGO, scheduler_hangs=AGO), NOW)
    assert gone.text.startswith("No scheduler is connected")


@pytest.mark.parametrize(
    ("quiet_s", "hangs"), [(None, False), (0.0, False), (10.0, False), (11.0, True)]
)
def test_connections_that_are_quiet_for_long_or_of_unknown_use(
    quiet_s: float | None, hangs: bool
) -> None:
    used_at = None if quiet_s is None else NOW - timedelta(seconds=quiet_s)

    assert hanging_since(used_at, NOW) == (used_at if hangs else None)


def test_the_ledger_that_is_away_hides_what_only_it_can_show() -> None:
    [ledger, events] = notices(STATE, Outages(ledger=AGO, scheduler=AGO, events=AGO), NOW)
    assert ledger.text.startswith(
        "Ledger unreachable since 14:04:00. Showing the state of 2026-11-20"
    )
    assert events.part == "events"


def test_use_that_is_not_brought_has_the_date_of_the_last() -> None:
    measured = MeasuredUse(memory_mib=1.0, core_percent=None, at=NOW - timedelta(minutes=5))
    state = a_state(a_node("n1", a_card()), use={"GPU-n1-0": measured})
    [known] = notices(state, Outages(events=AGO), NOW)
    [never] = notices(STATE, Outages(events=AGO), NOW)
    assert "Usage was last measured at 2026-11-20 14:00:00 UTC or soon after;" in known.text
    assert "Usage was never measured;" in never.text


def test_silent_agents_are_named_with_when_they_were_heard_the_longest_silent_first() -> None:
    nodes = [a_node(f"n{number}", a_card(), heard_s=100.0 * number) for number in range(1, 6)]
    never = replace(a_node("n9", a_card()), heard_at=None)
    [one] = notices(a_state(*nodes, never), Outages(), NOW)
    assert one.part == "agents"
    assert one.text.startswith(
        "6 agents are silent: n9 (never), n5 (last report 2026-11-20 13:56:40 UTC"
    )
    assert " and 3 more." in one.text
    [single] = notices(a_state(nodes[1]), Outages(), NOW)
    assert single.text.startswith("1 agent is silent: n2 (last report ")


def test_a_moment_of_the_past_and_a_ledger_that_was_never_read_have_none() -> None:
    assert notices(replace(STATE, past=True), Outages(ledger=AGO, events=AGO), NOW) == ()
    assert notices(None, Outages(ledger=AGO), NOW) == ()


# --- files that browsers load: ours, or a library's as it was published


VENDORED = {
    # npm htmx.org 2.0.11, dist/htmx.min.js
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    # npm uplot 1.6.32, dist/uPlot.iife.min.js and dist/uPlot.min.css
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
TEMPLATES = sorted(FOLDER.glob("templates/**/*.html"))


def test_vendored_files_are_as_they_were_published() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
    }
    assert found == VENDORED


def test_every_script_and_style_has_an_address_of_its_own_and_nothing_else_has_one() -> None:
    served = {path.relative_to(STATIC).as_posix() for path in FILES.values()}
    assert served == {
        *("charts.js", "hami.css", "hami.js", "icon.svg", "keys.js", "stream.js"),
        *("vendor/htmx.min.js", "vendor/uplot.min.css", "vendor/uplot.min.js"),
    }
    assert {path.name for path in FILES.values()} == set(FILES)


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_no_template_has_a_script_a_style_or_an_address_of_elsewhere(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]  # a Path, of parametrize
    assert not re.search(r"<script(?! defer src=\"/static/)|<style|\sstyle=|\son[a-z]+=", text)
    assert "://" not in text
    assert "|safe" not in text
    assert "autoescape false" not in text


def test_the_policy_allows_nothing_inline_and_nothing_of_elsewhere() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "://" not in CONTENT_SECURITY_POLICY


def test_a_service_whose_pages_nobody_looks_at_loads_nothing_of_them() -> None:
    ask = (
        "import sys, hami_metrics.bootstrap\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jinja2', 'sse_starlette')"
        " or name.startswith('hami_metrics.pages.') and name != 'hami_metrics.pages.entry'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
