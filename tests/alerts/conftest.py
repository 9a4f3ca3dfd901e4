"""promtool and Prometheus, of Debian's package `prometheus`; without them the cases are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "k8s" / "components" / "monitoring" / "rules"
Promtool = Callable[..., subprocess.CompletedProcess[str]]


def binary(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package prometheus; make test-alerts)")
    return found


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    program = binary("promtool")

    def run(*argv: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, argv)],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=ROOT,
        )

    return run
