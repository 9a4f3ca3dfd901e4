"""promtool on the rules: they parse, and each alert fires and is quiet as its page promises."""

import re
from pathlib import Path

import pytest
import yaml

from tests.alerts.conftest import Promtool
from tests.alerts.live import ROOT, RULES

CASES = ROOT / "tests" / "alerts" / "alerts.yaml"


def test_the_rules_are_sound(promtool: Promtool) -> None:
    done = promtool("check", "rules", *sorted(RULES.glob("*.yaml")))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 15 rules found" in done.stdout


def test_each_alert_fires_and_is_quiet_as_its_page_promises(promtool: Promtool) -> None:
    done = promtool("test", "rules", CASES)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("expr", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_cases_notice_alerts_that_never_or_always_fire(
    promtool: Promtool, tmp_path: Path, expr: str
) -> None:
    rules = yaml.safe_load((RULES / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    for alert in alerts:
        alert["expr"] = expr
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "recording.yaml").write_text((RULES / "recording.yaml").read_text())
    cases = CASES.read_text().replace("../../k8s/chart/monitoring/rules", str(tmp_path))
    (tmp_path / "cases.yaml").write_text(cases)

    done = promtool("test", "rules", tmp_path / "cases.yaml")

    assert done.returncode != 0
    assert {a["alert"] for a in alerts} <= set(re.findall(r"\bHami\w+", done.stderr))
