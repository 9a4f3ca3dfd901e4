"""Order of the cases, and which of them may run side by side when there are several workers."""

from xdist.scheduler import LoadScopeScheduling

WHOLE_SYSTEMS = ("tests/e2e/", "tests/faults/")
"""The cases of each of these folders share a running system, and usually wait for it."""
OWN_SYSTEMS = "systems of their own"
"""Group of the files of `tests/e2e` whose cases start a system each: one after the other."""
STARTS_A_SYSTEM = frozenset(
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
"""Files of these folders that share no system with the others there."""


def scope_of(nodeid: str) -> str:
    """Name the group of cases that one worker runs: a whole system's, or a file's."""
    file = nodeid.partition("::")[0]
    if file in STARTS_A_SYSTEM:
        return OWN_SYSTEMS if file.startswith("tests/e2e/") else file
    return next((folder for folder in WHOLE_SYSTEMS if file.startswith(folder)), file)


def starts_late(nodeid: str) -> bool:
    """Whether the case computes; those of whole systems wait, and run while others compute."""
    return not nodeid.startswith(WHOLE_SYSTEMS)


class SideBySide(LoadScopeScheduling):
    """Keep the cases of a scope with one worker, for their fixtures.

    The groups of whole systems come first, one worker each: they wait more than they compute. What
    is left when they are done is short files, which keep all processors busy until the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
