"""Translate violations of the ledger's named constraints into domain errors.

The database is the last check: a guarded statement that lost its race, or a mistake of ours, ends
here. A test refuses a constraint without an entry, so no caller ever gets a bare driver error for
one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hamicommon.errors import CapacityConflict, Conflict, HamiError, InvalidRequest
from hamicommon.ledger.tables.columns import (
    CORES_WITHIN_CEILING,
    EVENTS_GAP_FREE,
    MEMORY_WITHIN_CEILING,
    ONE_GRANT_AT_A_TIME,
    ONE_LIVE_PER_POD,
    PLACEMENTS_DISJOINT,
    SLOTS_WITHIN_CEILING,
    VERSION_GROWS,
)


class ConstraintViolation(Conflict):
    """Another row of the ledger forbids this one.

    `constraint` is its name in `hamicommon.ledger.tables.columns`.
    """

    def __init__(self, constraint: str, message: str) -> None:
        super().__init__(message)
        self.constraint = constraint


@dataclass(frozen=True, slots=True)
class ConstraintError:
    """Class of error and sentence for a violated constraint."""

    error: type[HamiError]
    sentence: str


def _violation(sentence: str) -> ConstraintError:
    return ConstraintError(ConstraintViolation, sentence)


def _full(sentence: str) -> ConstraintError:
    return ConstraintError(CapacityConflict, sentence)


def _wrong(sentence: str) -> ConstraintError:
    return ConstraintError(InvalidRequest, sentence)


MEANINGS: dict[str, ConstraintError] = {
    # SAFE-1: a card never gives more than it has.
    SLOTS_WITHIN_CEILING: _full("the card's slots can't hold it"),
    MEMORY_WITHIN_CEILING: _full("the card's memory can't hold it"),
    CORES_WITHIN_CEILING: _full("the card's cores can't hold it"),
    PLACEMENTS_DISJOINT: _full("another slice has that part of the card"),
    "ck_devices_ceiling_slots_cover": _wrong("a card's ceiling_slots is at least its slots"),
    "ck_devices_ceiling_memory_cover": _wrong(
        "a card's ceiling_memory_mib is at least its memory_mib"
    ),
    "ck_devices_ceiling_cores_cover": _wrong(
        "a card's ceiling_core_percent is at least its core_percent"
    ),
    # One grant per pod, now and in all history.
    ONE_LIVE_PER_POD: _violation("the pod has a live grant already"),
    ONE_GRANT_AT_A_TIME: _violation("the pod held another grant at that time"),
    "uq_allocations_pod_uid_attempt": _violation("another writer made this attempt of the pod"),
    # SAFE-6: the history is complete and in order.
    "uq_allocation_events_pod_uid_sequence": _violation(
        "another writer wrote the pod's next event"
    ),
    EVENTS_GAP_FREE: _violation("the event does not follow the pod's last one"),
    # Values and amounts that only a mistake of ours can cause.
    "ck_nodes_source_known": _wrong("nodes.source must be agent or annotation"),
    "ck_allocations_state_known": _wrong("allocations.state must be a state of architecture 4"),
    "ck_allocations_origin_known": _wrong(
        "allocations.origin must be scheduled, adopted, unmanaged or claim"
    ),
    "ck_allocations_ended_when_not_live": _wrong("ended_at is set in states that are not live"),
    "ck_allocation_devices_slots_positive": _wrong("a slice's slots must be at least 1"),
    "ck_allocation_devices_role_known": _wrong("a slice's role must be init or app"),
    "ck_decisions_outcome_known": _wrong("decisions.outcome must be placed, refused or error"),
    "ck_decision_snapshots_kind_known": _wrong("a snapshot's kind is inventory or counters"),
    "ck_quotas_used_not_negative": _wrong("a quota's used_amount can't fall below 0"),
    "ck_usage_rollups_not_empty": _wrong("a rollup has a length and at least one sample"),
    "ck_limit_periods_state_known": _wrong(
        "a container's state beyond its grant is exceeded, bypassed or unknown"
    ),
    "ck_limit_periods_ends_after_it_began": _wrong("a period can't end before it began"),
    "ck_operator_calls_outcome_known": _wrong("a call's outcome is begun, done, failed or refused"),
    "ck_device_periods_in_order": _wrong("a card's period can't end before it began"),
    "ck_node_gaps_in_order": _wrong("a node's gap ends after it began"),
    "ck_quota_periods_in_order": _wrong("a quota's period can't end before it began"),
    "ck_capacity_rollups_hour_or_day": _wrong("a rollup of capacity is of an hour or a day"),
    "ck_namespace_rollups_hour_or_day": _wrong("a namespace's rollup is of an hour or a day"),
    "ck_showback_rollups_hour_or_day": _wrong("a bill's rollup is of an hour or a day"),
    "ck_showback_rollups_kind_known": _wrong(
        "a card's time is held, idle, stranded, cordoned, unhealthy or unknown"
    ),
    "ck_showback_rollups_not_negative": _wrong("a card's time is at least 0"),
    # Values that our writers never send; a report with one is refused earlier
    # (`hamicommon.events`).
    "ck_nodes_sequence_bounded": _wrong("an agent's number is between 0 and 2^53"),
    "ck_nodes_pair_scores_object": _wrong("nodes.pair_scores is an object"),
    "ck_devices_version_bounded": _wrong("a card's version is between 1 and 2^43"),
    VERSION_GROWS: _wrong("a card's version only grows"),
    "ck_devices_amounts_not_negative": _wrong("a card's slots, memory and cores are at least 0"),
    "ck_devices_info_object": _wrong("devices.info is an object"),
    "ck_devices_holdings_object": _wrong("devices.holdings is an object"),
    "ck_devices_mig_profiles_array": _wrong("devices.mig_profiles is an array"),
    "ck_quotas_limit_not_negative": _wrong("a quota's limit is at least 0"),
    "ck_allocations_token_bounded": _wrong("a token is between 1 and 2^53"),
    "ck_allocations_attempt_bounded": _wrong("an attempt's number is between 1 and 2^30"),
    "ck_allocations_annotations_object": _wrong("allocations.annotations is an object"),
    "ck_allocation_devices_detail_object": _wrong("allocation_devices.detail is an object"),
    "ck_allocation_devices_amounts_not_negative": _wrong(
        "a slice's memory and cores are at least 0"
    ),
    "ck_allocation_claims_amounts_not_negative": _wrong(
        "a claimed slice's slots, memory and cores are at least 0"
    ),
    "ck_limit_checks_sequence_bounded": _wrong("a check's number is between 0 and 2^53"),
    "ck_limit_periods_amounts_not_negative": _wrong("what a container held is at least 0"),
    "ck_scale_wishes_state_known": _wrong("a wish for a node is wanted or asked until it ends"),
    "ck_usage_samples_amounts_not_negative": _wrong("what was used is at least 0"),
    "ck_usage_rollups_amounts_not_negative": _wrong("what was used is at least 0"),
    # The referenced row does not exist (yet): look again and retry.
    "fk_devices_node_nodes": _violation("the card's node is not known yet"),
    "fk_allocations_node_nodes": _violation("the allocation's node is not known yet"),
    "fk_allocation_devices_allocation_id_allocations": _violation("the allocation does not exist"),
    "fk_allocation_claims_allocation_id_allocations": _violation("the allocation does not exist"),
    "fk_preempted_room_id_allocations": _violation("the room does not exist"),
    "fk_preempted_victim_id_allocations": _violation("the victim's allocation does not exist"),
    "fk_allocation_devices_device_uuid_devices": _violation("the card is not known yet"),
    "fk_allocation_containers_allocation_id_allocations": _violation(
        "the allocation does not exist"
    ),
    "fk_allocation_events_allocation_id_allocations": _violation("the allocation does not exist"),
    "fk_device_health_events_device_uuid_devices": _violation("the card is not known yet"),
}
"""Errors by constraint name; a violated primary key always means that the row exists."""

_FIRST_VALUE = re.compile(r"\(([^,)]*)")


def error_of(constraint: str, *, detail: str = "", cause: str = "") -> HamiError:
    """Return the domain error for a violation of `constraint`.

    `detail` is PostgreSQL's "Failing row contains (...)": of a card it begins with the uuid.
    `cause` is the driver's own sentence.
    """
    meaning = MEANINGS.get(constraint) or _violation("the row exists already")
    message = f"ledger: {meaning.sentence} ({cause or constraint})"
    if meaning.error is CapacityConflict:
        found = _FIRST_VALUE.search(detail)
        return CapacityConflict(found[1] if found else "", message)
    if meaning.error is ConstraintViolation:
        return ConstraintViolation(constraint, message)
    return meaning.error(message)
