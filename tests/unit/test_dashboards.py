"""The boards are what scripts/dashboards writes, and name metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.ledger.tables import metadata

from tests.metric_registry import list_declared

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "k8s" / "chart" / "monitoring"
BOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
Json = dict[str, Any]
BOARD = pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
OTHERS = {"ALERTS", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"}
"""Prometheus's own, and dcgm-exporter's where it runs."""


def records() -> set[str]:
    rules = yaml.safe_load((MONITORING / "rules" / "recording.yaml").read_text())
    return {rule["record"] for group in rules["groups"] for rule in group["rules"]}


def panels(board: Path) -> list[Json]:
    return list(json.loads(board.read_text())["panels"])


def test_boards_are_what_the_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "dashboards"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert len(BOARDS) == 7


def test_grafana_gets_every_board() -> None:
    kustomization = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())
    [boards] = kustomization["configMapGenerator"]
    assert boards["files"] == [f"dashboards/{path.name}" for path in BOARDS]


@BOARD
def test_every_panel_has_a_title_a_description_a_unit_and_its_own_place(board: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"] == "not measured"
        assert panel["type"] in ("timeseries", "heatmap", "state-timeline", "stat", "table")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        taken |= cells


@BOARD
def test_every_expression_names_metrics_that_there_are(board: Path) -> None:
    known = {series for each in list_declared() for series in each.series} | records() | OTHERS
    for panel in panels(board):
        for expr in (target["expr"] for target in panel["targets"] if "expr" in target):
            named = set(re.findall(r"(?<![\w:\"'])(?:[a-z]+:)?hami_\w+(?::\w+)?|[A-Z_]{6,}", expr))
            assert named, expr
            assert named <= known, named - known


@BOARD
def test_every_query_of_the_ledger_names_tables_that_there_are(board: Path) -> None:
    views = set(re.findall(r"\b(v_\w+)", (ROOT / "docs" / "sql.md").read_text()))
    for panel in panels(board):
        for sql in (target["rawSql"] for target in panel["targets"] if "rawSql" in target):
            assert set(re.findall(r"FROM (\w+)", sql)) <= {*metadata.tables, *views}


@BOARD
def test_variables_that_are_used_are_declared(board: Path) -> None:
    text = board.read_text()
    declared_names = {each["name"] for each in json.loads(text)["templating"]["list"]}

    used = set(re.findall(r"\$\{?([a-z]\w*)", text))
    assert used <= declared_names
