"""Revisions of a ledger as stored in `alembic_version`; the migrations are in `migrations/`.

Since 0010 the history has two branches: `pre` migrations, which old code can run with, and `post`
ones, which wait until a roll-out is over. So a ledger may have a row for each branch.
"""

from __future__ import annotations

from collections.abc import Collection

NEEDED = "0043"
"""Newest `pre` migration, without which a service of this version is not ready."""

LAST_OF_ONE_LINE = "0013"
"""Last revision before the history had two branches; 0014 and 0015 followed all `post` ones."""
_AFTER_IT = ("0014", "0015")

SPLIT = f"""
INSERT INTO alembic_version (version_num)
SELECT '{LAST_OF_ONE_LINE}'
 WHERE (SELECT array_agg(version_num::text) FROM alembic_version)
       IN ({", ".join(f"ARRAY['{each}']" for each in _AFTER_IT)})
   AND to_regclass('public.allocation_periods') IS NOT NULL
"""
"""Statement that adds the revision which a ledger from that time lacks; see `of_both_branches`."""


def of_both_branches(rows: Collection[str], *, has_periods: bool) -> tuple[str, ...]:
    """Return the stored revisions as they would be had history always had two branches.

    `has_periods`: the table of 0012 exists. In a ledger with only 0014 or 0015 stored this means
    that it is from before the branches.
    """
    if has_periods and len(rows) == 1 and set(rows) <= set(_AFTER_IT):
        return tuple(sorted({*rows, LAST_OF_ONE_LINE}))
    return tuple(sorted(rows))
