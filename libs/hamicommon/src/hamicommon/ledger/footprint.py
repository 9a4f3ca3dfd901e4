"""SQL that sums up what an allocation takes from each card, like `allocations.footprints`."""

from __future__ import annotations

from typing import Literal

_FOOTPRINT = """greatest(coalesce(sum({x}.{amount}) FILTER (WHERE {x}.role = 'app'), 0),
    coalesce(max({x}.{amount}
                 + (hami_beside({x}.allocation_id, {x}.device_uuid, {x}.container_name)).{amount})
             FILTER (WHERE {x}.role = 'init'), 0))::bigint"""


def footprint(amount: Literal["slots", "memory_mib", "core_percent"], x: str = "x") -> str:
    """Return the SQL sum over rows `x` of `allocation_devices`, grouped by allocation and card.

    Sidecars have the role `app`; `hami_beside` (0033) is what those declared before an init
    container hold of its card.
    """
    return _FOOTPRINT.format(x=x, amount=amount)
