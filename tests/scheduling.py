"""Which cases may run side by side when there are several workers (`make test` has two)."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WHOLE_SYSTEMS = ("tests/e2e/", "tests/faults/")
"""Their cases share a running system, and mostly wait for it."""


class SideBySide(LoadScopeScheduling):  # type: ignore[misc]
    """A file stays with one worker, for its fixtures; so do all cases that drive a whole system.

    The largest groups go first, so whole systems are one worker's work and the rest is the other's.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "whole systems" if file.startswith(WHOLE_SYSTEMS) else file
