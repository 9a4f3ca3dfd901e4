"""What the Helm chart renders with values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.unit.k8s.chart.rendered import CHART, Json, Objects, Render, helm, key_of

POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def run(
        values: Json | None = None,
        *,
        namespace: str = "hami-system",
        policies: bool = True,
        apis: Sequence[str] = (),
    ) -> Objects:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        known = [*apis, *([POLICIES] if policies else [])]
        given = [part for api in known for part in ("--api-versions", api)]
        done = helm("template", "x", str(CHART), "-n", namespace, "-f", str(file), *given)
        assert done.returncode == 0, done.stderr
        return {key_of(each): each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each}

    return run
