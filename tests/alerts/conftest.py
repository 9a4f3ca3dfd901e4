"""promtool and Prometheus, of Debian's package `prometheus`; without them the cases are skipped.

One running system, and one Prometheus that scrapes it, serve all cases that ask for them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.live import ROOT, Prometheus, prometheus, targets

HAMICTL = Path(sys.executable).parent / "hamictl"
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


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The demo of `make up`."""
    binary("prometheus")
    with local_system(tmp_path_factory.mktemp("system"), {}) as found:
        yield found


@contextmanager
def local_system(folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The demo of `make up` with these settings for its services, while the block runs; what
    `hamictl up --json` prints."""
    done = subprocess.run(
        [HAMICTL, "up", "--detach", "--json"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    try:
        yield json.loads(done.stdout)
    finally:
        subprocess.run([HAMICTL, "down"], cwd=folder, timeout=120, check=True)


@pytest.fixture(scope="session")
def scraped(up: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(binary("prometheus"), folder, targets(up)) as found:
        yield found
