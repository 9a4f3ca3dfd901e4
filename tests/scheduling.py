"""Which cases may run side by side, when there are several workers."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WHOLE_SYSTEMS = ("tests/e2e/", "tests/faults/")
"""The cases of each of these share a running system, and mostly wait for it."""
OWN_SYSTEMS = frozenset(
    {
        "tests/e2e/local/test_own_cards.py",
        "tests/e2e/placement/test_burst.py",
        "tests/e2e/placement/test_late_binding.py",
        "tests/e2e/placement/test_mig.py",
        "tests/e2e/placement/test_pods_without_cards.py",
        "tests/e2e/placement/test_refused_pods.py",
        "tests/e2e/placement/test_retry.py",
        "tests/faults/nodes/test_kubelet_order.py",
        "tests/faults/test_outages_under_load.py",
    }
)
"""Files of these folders whose cases start a system each, and wait a minute or more for it."""


class SideBySide(LoadScopeScheduling):
    """A file stays with one worker, for its fixtures; so do all cases that drive one whole system.

    The largest groups go first: each folder of whole systems is the work of one worker, and the
    other files, with those that start systems of their own near the end, are what the third does,
    and those two once they are done. Three workers keep two cores busy.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in OWN_SYSTEMS:
            return file
        return next((folder for folder in WHOLE_SYSTEMS if file.startswith(folder)), file)
