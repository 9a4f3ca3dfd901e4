"""Which cases may run side by side, when there are several workers."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WHOLE_SYSTEMS = ("tests/e2e/", "tests/faults/")
"""The cases of each of these share a running system, and mostly wait for it."""
OUTAGES = "tests/faults/test_outages_under_load.py"
"""Has a system of its own, and waits for ten minutes at a time in the long runs."""


class SideBySide(LoadScopeScheduling):
    """A file stays with one worker, for its fixtures; so do all cases that drive one whole system.

    The largest groups go first, so each folder of whole systems is the work of one worker, and the
    other files are what the third does, and those two once they are done: three workers keep two
    cores busy.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == OUTAGES:
            return file
        return next((folder for folder in WHOLE_SYSTEMS if file.startswith(folder)), file)
