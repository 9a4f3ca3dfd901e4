"""Rules, runbooks and cases belong together, and their references exist.

The tests with promtool are in tests/alerts.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.ledger.questions.catalogue import questions
from hamictl.__main__ import COMMANDS

from tests.metric_registry import list_declared

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "k8s" / "chart" / "monitoring" / "rules"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
CASES = ROOT / "tests" / "alerts" / "alerts.yaml"
Json = dict[str, Any]


@cache
def rules() -> tuple[Json, ...]:
    found = [
        yaml.safe_load((RULES / f"{name}.yaml").read_text()) for name in ("recording", "alerts")
    ]
    return tuple(rule for file in found for group in file["groups"] for rule in group["rules"])


def alerts() -> list[Json]:
    return [rule for rule in rules() if "alert" in rule]


ALERTS = pytest.mark.parametrize("alert", alerts(), ids=lambda each: each["alert"])
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOKS.read_text(), re.M | re.S))
RUNBOOK = pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS)


def test_every_alert_has_a_section_and_no_other() -> None:
    assert {alert["alert"] for alert in alerts()} == SECTIONS.keys()
    assert len(alerts()) == len(SECTIONS) == 15


@pytest.mark.parametrize("rule", rules(), ids=lambda each: each.get("alert") or each["record"])
def test_a_rule_names_metrics_that_there_are(rule: Json) -> None:
    known = {series for each in list_declared() for series in each.series}
    known |= {each["record"] for each in rules() if "record" in each}
    named = set(re.findall(r"(?<![\w:\"'])(?:[a-z]+:)?hami_\w+(?::\w+)?", rule["expr"]))

    assert named
    assert named <= known


@ALERTS
def test_an_alert_has_a_severity_texts_and_a_page(alert: Json) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    notes = alert["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"docs/runbooks.md#{alert['alert'].lower()}"


@ALERTS
def test_an_alert_has_a_firing_and_a_quiet_case(alert: Json) -> None:
    cases = [
        case["exp_alerts"]
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert["alert"]
    ]

    assert any(cases)
    assert any(not expected for expected in cases)


@RUNBOOK
def test_a_section_has_the_parts_that_are_needed_at_night(text: str) -> None:
    assert re.findall(r"^\*\*(\w+)\*\*", text, re.MULTILINE) == ["Impact", "Check", "Fix"]


@RUNBOOK
def test_the_commands_of_a_section_exist(text: str) -> None:
    for verb in re.findall(r"hamictl ([a-z-]+)", text):
        assert verb in COMMANDS, verb
    for question in re.findall(r"hamictl sql ([a-z]+(?:-[a-z]+)+)", text):
        assert question in questions(), question
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (RUNBOOKS.parent / link).exists(), link
