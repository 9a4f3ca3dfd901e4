"""Constraints that adapters know by name: they translate them into domain errors."""

from __future__ import annotations

ONE_LIVE_PER_POD = "uq_allocations_live_pod"
SLOTS_WITHIN_CEILING = "ck_devices_slots_within_ceiling"
MEMORY_WITHIN_CEILING = "ck_devices_memory_within_ceiling"
CORES_WITHIN_CEILING = "ck_devices_cores_within_ceiling"
PLACEMENTS_DISJOINT = "ck_devices_placements_disjoint"
ONE_GRANT_AT_A_TIME = "ex_allocation_periods_one_grant_at_a_time"
"""Also raised by the trigger of migration 0012 that looks at a grant that begins."""
VERSION_GROWS = "ck_devices_version_grows"
"""Raised by the trigger `version_grows` of migration 0034."""
EVENTS_GAP_FREE = "ck_allocation_events_gap_free"
"""Raised by the trigger `gap_free` of migration 0008, which is no constraint of the catalogue."""
