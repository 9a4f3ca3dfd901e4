"""Measurements of cases, one line each, printed under the results of the run.

The lines travel with the reports of cases: those of workers arrive too (`make test` has three).
"""

import pytest

KEY = "measured"
_LINES: list[str] = []
"""Since the last report of a case."""


def note(line: str) -> None:
    """Show `line` under the results of the run, with the case that runs now."""
    _LINES.append(line)


def attach(report: pytest.TestReport) -> None:
    """Moves the lines noted since the last report to this one."""
    report.user_properties.extend((KEY, line) for line in _LINES)
    _LINES.clear()


def lines(reporter: pytest.TerminalReporter) -> list[str]:
    """All lines of the run, in the order of the reports."""
    reports = (report for group in reporter.stats.values() for report in group)
    return [
        str(value)
        for report in reports
        for key, value in getattr(report, "user_properties", ())
        if key == KEY
    ]
