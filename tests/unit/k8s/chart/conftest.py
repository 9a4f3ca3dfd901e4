"""Renderings of the Helm chart with values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.unit.k8s.chart.rendered import CHART, Json, Objects, Render, helm, key_of


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def run(
        values: Json | None = None,
        *,
        namespace: str = "hami-system",
        kubernetes: str = "1.33.0",
        apis: Sequence[str] = (),
    ) -> Objects:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        given = [part for api in apis for part in ("--api-versions", api)]
        given += ["--kube-version", kubernetes]
        done = helm("template", "x", str(CHART), "-n", namespace, "-f", str(file), *given)
        assert done.returncode == 0, done.stderr
        return {key_of(each): each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each}

    return run
