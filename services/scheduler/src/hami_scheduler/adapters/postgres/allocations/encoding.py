"""What goes into the statements of an allocation, and what their rows mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamicommon.domain.allocations import Allocation, AllocationState, ContainerGrant
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.events import event_subject
from hamicommon.ledger.cards.demands import wanted_by
from hamicommon.ledger.model import CardCounters, Change, Draft, ReservationWrite, Rules


def reserved_change(
    draft: Draft,
    row: Any,
    counters: tuple[CardCounters, ...],
    *,
    state: AllocationState = AllocationState.RESERVED,
    token: int | None = None,
) -> Change:
    """The change that a statement of `reserve` made."""
    allocation = Allocation(
        id=draft.allocation_id,
        pod_uid=draft.pod_uid,
        namespace=draft.namespace,
        pod_name=draft.pod_name,
        attempt=row["attempt"],
        node=draft.placement.node,
        state=state,
        token=token,
        containers=draft.placement.containers,
        reserved_at=row["reserved_at"],
        deadline=row["deadline"],
        traceparent=draft.traceparent,
        annotations=draft.annotations,
        has_agent=row["has_agent"],
    )
    return Change(allocation=allocation, sequence=row["sequence"], counters=counters)


def reserve_arguments(
    draft: Draft,
    taken: Sequence[CardCounters],
    *,
    state: AllocationState = AllocationState.RESERVED,
    reason: str = "",
) -> list[Any]:
    """Parameters $1 to $28 of RESERVE, RESERVE_ONE and ENTER."""
    containers = draft.placement.containers
    return [
        draft.allocation_id,
        draft.pod_uid,
        draft.namespace,
        draft.pod_name,
        draft.placement.node,
        dict(draft.policy),
        draft.placement.score,
        draft.traceparent,
        draft.lease_s,
        [container.index for container in containers],
        [container.name for container in containers],
        [_stored_role(container) for container in containers],
        *share_columns(containers),
        draft.actor,
        event_subject("allocation", state.value),
        _payload(draft, state, reason, taken),
        dict(draft.annotations),
        None if draft.owner is None else _owner_json(draft.owner),
    ]


def _payload(
    draft: Draft, state: AllocationState, reason: str, taken: Sequence[CardCounters]
) -> dict[str, Any]:
    node = draft.placement.node
    whose = (draft.allocation_id, draft.pod_uid, draft.namespace, draft.pod_name, node)
    return _announcement(whose, state, reason, taken)


def batch_arguments(writes: Sequence[ReservationWrite], rules: Rules) -> list[list[Any]]:
    """Parameters $1 to $37 of RESERVE_ALL: one array per column. Each draft is plain."""
    whole, containers, shares = [], [], []
    for write in writes:
        draft = write.draft
        identity, placement = draft.allocation_id, draft.placement
        [card] = wanted_by(draft, rules)
        payload = _payload(draft, AllocationState.RESERVED, "", ())
        whole.append(
            (
                *(identity, draft.pod_uid, draft.namespace, draft.pod_name, placement.node),
                *(dict(draft.policy), placement.score, draft.traceparent, draft.lease_s),
                dict(draft.annotations),
                None if draft.owner is None else _owner_json(draft.owner),
                draft.actor,
                *(card.uuid, card.slots, card.memory_mib, card.core_percent),
                *(card.coreless, card.respects_cordon, payload),
                None if write.claim is None else write.claim.actor,
                None if write.claim is None else write.claim.lease_s,
            )
        )
        containers += [(identity, c.index, c.name, _stored_role(c)) for c in placement.containers]
        shares += [(identity, *row) for row in _share_rows(placement.containers)]
    return [
        list(column) for rows in (whole, containers, shares) for column in zip(*rows, strict=True)
    ]


def _owner_json(owner: PodOwner) -> dict[str, Any]:
    return {
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "deployment": owner.deployment,
        "service_account": owner.service_account,
        "created_by": owner.created_by,
        "labels": dict(owner.labels),
    }


def _stored_role(container: ContainerGrant) -> str:
    """The role in `allocation_containers`; that it is a sidecar is stored with its slices."""
    return "init" if container.role == "init" else "app"


def share_columns(containers: Sequence[ContainerGrant]) -> list[list[Any]]:
    """Parameters of INSERT_SHARES: one array per column."""
    rows = _share_rows(containers)
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 11


def _share_rows(containers: Sequence[ContainerGrant]) -> list[tuple[Any, ...]]:
    return [
        (
            container.index,
            position,
            container.name,
            container.role,
            share.uuid,
            share.vendor,
            share.memory_mib,
            share.core_percent,
            share.slots,
            share.type,
            dict(share.detail),
        )
        for container in containers
        for position, share in enumerate(container.shares)
    ]


def event_payload(
    old: Allocation, state: AllocationState, reason: str, counters: Sequence[CardCounters]
) -> dict[str, Any]:
    """The announcement of a change, short of its event id, number and time (SQL adds them)."""
    whose = (old.id, old.pod_uid, old.namespace, old.pod_name, old.node)
    return _announcement(whose, state, reason, counters)


def _announcement(
    whose: tuple[AllocationId, PodUid, str, str, NodeName],
    state: AllocationState,
    reason: str,
    counters: Sequence[CardCounters],
) -> dict[str, Any]:
    names = ("allocation_id", "pod_uid", "namespace", "pod_name", "node")
    return {
        "version": 1,
        **dict(zip(names, whose, strict=True)),
        "state": state.value,
        "reason": reason,
        "counters": [counters_json(card) for card in counters],
    }


def counters_json(card: CardCounters) -> dict[str, Any]:
    """See events.DeviceCounters."""
    counters = {
        "node": card.node,
        "uuid": card.uuid,
        "used_slots": card.used_slots,
        "used_memory_mib": card.used_memory_mib,
        "used_core_percent": card.used_core_percent,
        "device_version": card.version,
    }
    return counters | {"holdings": list(card.holdings)} if card.holdings else counters


def parts_of(old: Allocation) -> dict[str, Any]:
    """What a change of state leaves of `old`, in the shape of a row."""
    return {
        "annotations": old.annotations,
        "origin": old.origin,
        "has_agent": old.has_agent,
        "containers": [(c.index, c.name, c.role) for c in old.containers],
        "shares": [
            (
                *(c.index, s.uuid, s.vendor, s.memory_mib, s.core_percent, s.slots),
                *(s.type, s.detail, c.role == "sidecar"),
            )
            for c in old.containers
            for s in c.shares
        ],
        "claims": [
            (
                *(k.container, k.position, k.claim_uid, k.claim, k.request, k.share_id),
                *(k.share.uuid, k.share.vendor, k.share.memory_mib, k.share.core_percent),
                *(k.share.slots, k.counted),
            )
            for k in old.claims
        ],
    }


def card_names(containers: Sequence[ContainerGrant]) -> dict[str, list[str]]:
    """Container name -> uuids."""
    return {c.name: [share.uuid for share in c.shares] for c in containers if c.shares}


def latest_counters(counters: Sequence[CardCounters]) -> tuple[CardCounters, ...]:
    """The newest state of each card, when one transaction changed it twice."""
    newest: dict[str, CardCounters] = {}
    for card in counters:
        if card.uuid not in newest or newest[card.uuid].version < card.version:
            newest[card.uuid] = card
    return tuple(newest.values())
