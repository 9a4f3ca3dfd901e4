"""A module that takes long to import, as what computes does: it notes the priority that it got."""

import os

AT_IMPORT = os.nice(0)


def niceness() -> tuple[int, int]:
    """Return the process's niceness when this was imported, and now."""
    return AT_IMPORT, os.nice(0)
