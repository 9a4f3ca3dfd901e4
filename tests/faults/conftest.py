"""One system whose services read their faults from a file that the cases write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import running_system
from tests.e2e.system import System

LINES: list[str] = []
"""What every case measured, one line each."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the lines under the results."""
    for line in LINES:
        terminalreporter.write_line(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """The system, and the way to make it fail."""

    system: System
    file: Path

    def plan(self, *faults: str) -> None:
        """Makes exactly these faults happen from now on."""
        whole = self.file.with_suffix(".written")
        whole.write_text("\n".join(faults))
        whole.replace(self.file)


@pytest.fixture(scope="session")
def faulty_cluster() -> Iterator[Faulty]:
    """Two nodes with four cards each, on the emulated API server; Postgres is durable there."""
    with tempfile.TemporaryDirectory(prefix="hami-faults-") as folder:
        file = Path(folder) / "faults"
        file.touch()
        with running_system(
            "emulator", "--nodes", "2", environment={"HAMI_FAILPOINTS_FILE": str(file)}
        ) as system:
            yield Faulty(system=system, file=file)


@pytest.fixture
def faulty(faulty_cluster: Faulty) -> Iterator[Faulty]:
    """The session's system; after each case it has no fault, no pod and no grant."""
    yield faulty_cluster
    faulty_cluster.plan()
    faulty_cluster.system.check_invariants()
    faulty_cluster.system.delete_all()
    faulty_cluster.system.check_invariants()
