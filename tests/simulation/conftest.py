"""Which histories are played, and what they measured."""

from __future__ import annotations

import pytest

LINES: list[str] = []
"""What every long case measured, one line each."""
FEW = tuple(str(number) for number in range(6))
"""The seeds of `make test`: some seconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--seed` plays those histories instead of the few."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", metafunc.config.getoption("--seed") or FEW)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the lines under the results."""
    for line in LINES:
        terminalreporter.write_line(line)
