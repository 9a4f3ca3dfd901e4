"""Which cases may run side by side, when there are several workers."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WHOLE_SYSTEMS = ("tests/e2e/", "tests/faults/")
"""Their cases share a running system, and mostly wait for it."""
OUTAGES = "tests/faults/test_outages_under_load.py"
"""Has a system of its own, and waits for ten minutes at a time in the long runs."""


class SideBySide(LoadScopeScheduling):
    """A file stays with one worker, for its fixtures; so do all cases that drive a whole system.

    The largest groups go first, so whole systems are one worker's work and the rest is the other's.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        together = file.startswith(WHOLE_SYSTEMS) and file != OUTAGES
        return "whole systems" if together else file
