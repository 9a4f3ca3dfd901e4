"""The boards in a real Grafana: it takes each, and each panel's query is answered through it."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.alerts.grafana import Grafana, grafana, grafana_folder
from tests.alerts.live import BOARDS, VARIABLES, Prometheus, expressions, until

pytestmark = [pytest.mark.slow, pytest.mark.integration]

Json = dict[str, Any]
FILES = sorted(BOARDS.glob("*.json"))
WITH_DATA = (
    *("hami-overview/Cards/A", "hami-overview/Largest holders/A", "hami-nodes/Nodes/A"),
    *(
        "hami-workload/Memory/A",
        "hami-scheduling/Decisions/A",
        "hami-waiting/Waiting pods by age/A",
    ),
    "hami-internals/Usage samples/A",
)
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Grafana]:
    # Where there is none, no system is started for it.
    home = grafana_folder()
    scraped: Prometheus = request.getfixturevalue("scraped")
    up: Json = request.getfixturevalue("up")
    addresses = {"Prometheus": scraped.url, "Ledger": up["postgres_dsn"]}
    with grafana(home, tmp_path_factory.mktemp("grafana"), addresses) as found:
        yield found


def panels_of(board: Json) -> list[Json]:
    """Return the panels of a board without the fields that Grafana adds."""
    return [
        {key: panel[key] for key in ("title", "type", "targets", "options", "fieldConfig")}
        for panel in board["panels"]
    ]


def test_grafana_has_every_board_as_it_is_written(shown: Grafana) -> None:
    until(lambda: len(shown.get("search", type="dash-db")) == len(FILES), "seven boards")

    for file in FILES:
        written = json.loads(file.read_text())
        taken = shown.get(f"dashboards/uid/{written['uid']}")
        assert taken["meta"]["provisioned"], file.stem
        assert taken["dashboard"]["title"] == written["title"]
        assert panels_of(taken["dashboard"]) == panels_of(written)


def test_every_expression_of_a_panel_is_answered_through_its_data_source(shown: Grafana) -> None:
    asked = {where: expr for where, expr in expressions().items() if "/" in where}

    def empty() -> list[str]:
        return [w for w in WITH_DATA if not shown.prometheus("query", query=asked[w])["result"]]

    until(lambda: not empty(), "panels to have data")
    now = time.time()
    for where, expr in asked.items():
        found = shown.prometheus(
            "query_range", query=expr, start=str(now - 300), end=str(now), step="15"
        )
        assert found["resultType"] == "matrix", where


def test_every_query_of_the_ledger_is_answered_through_its_data_source(shown: Grafana) -> None:
    targets = [
        (f"{file.stem}/{panel['title']}", target)
        for file in FILES
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
        if "rawSql" in target
    ]
    assert targets

    for where, target in targets:
        answer = shown.ledger(target)
        assert {"frames", "series", "tables"} & answer.keys(), (where, answer)


def test_every_variable_of_a_board_has_values(shown: Grafana) -> None:
    asked = 0
    for file in FILES:
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found is not None, variable
            selector = found[1]
            for name, value in VARIABLES.items():
                selector = selector.replace(name, value)
            series = shown.prometheus("series", **{"match[]": selector})
            assert {one[found[2]] for one in series}, (file.stem, variable["name"])
            asked += 1
    assert asked


def test_a_query_that_is_wrong_is_an_error_here(shown: Grafana) -> None:
    """Prove that the cases above can fail."""
    with pytest.raises(AssertionError):
        shown.prometheus("query", query="sum(")
    wrong = {"refId": "A", "rawSql": "SELECT nothing FROM nowhere", "format": "table"}
    with pytest.raises(AssertionError):
        shown.ledger(wrong)
