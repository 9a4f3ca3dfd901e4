"""Format changes for `hamictl history`: of the pods of a name, of a node or of a card.

Pure. Of a node or a card they are the steps of its grants, and its health.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hamictl.output.records import (
    Records,
    Row,
    TableColumn,
    plain_column,
    text_of,
    time_column,
)
from hamictl.output.terminal import shown_time
from hamictl.view.explanation import score_text
from hamictl.view.lists import claims_of

SHORT_UUID = 12
"""Characters of a card's uuid in a table; `-o wide` has all of it."""


def uids_newest_first(allocations: Sequence[Row], existing: str | None) -> list[str]:
    """Return the pods of these allocations (newest first), beginning with the existing one."""
    seen = [str(row["pod_uid"]) for row in allocations]
    return list(dict.fromkeys([existing, *seen] if existing else seen))


def cards_of(allocation: Row, index_of: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the cards of an allocation; the index is None if the card is no longer known."""
    uuids = dict.fromkeys(str(each["device_uuid"]) for each in allocation["devices"])
    return [
        {"node": allocation["node"], "index": index_of.get(uuid), "uuid": uuid} for uuid in uuids
    ]


def with_cards(
    changes: Sequence[Row], allocations: Sequence[Row], index_of: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Add the pod's uid and the allocation's cards to each change."""
    by_id = {str(row["id"]): row for row in allocations}
    found = []
    for change in changes:
        allocation = by_id.get(str(change["allocation_id"]))
        more: dict[str, Any] = {"pod_uid": None, "cards": None}
        if allocation is not None:
            more = {"pod_uid": allocation["pod_uid"], "cards": cards_of(allocation, index_of)}
        found.append({**change, **more})
    return found


def earlier_line(uid: str, allocations: Sequence[Row]) -> str:
    """Summarize an earlier pod of the name: its uid, its times and its node."""
    own = [row for row in allocations if row["pod_uid"] == uid]
    begin = min(str(row["reserved_at"]) for row in own)
    ends = [row["ended_at"] for row in own]
    until = "now" if None in ends else shown_time(max(map(str, ends)))
    nodes = ", ".join(dict.fromkeys(text_of(row["node"]) for row in reversed(own)))
    return f"{uid}: {shown_time(begin)} to {until} on {nodes}: `hamictl history {uid}`"


def gone_sentence(allocations: Sequence[Row]) -> str:
    """Return that a pod is no longer in the cluster, and the time if the ledger has it."""
    ended = [row for row in allocations if row["ended_at"] is not None]
    if not ended or len(ended) < len(allocations):
        return "It is gone: the cluster has no pod of this name and uid."
    last = max(ended, key=lambda row: str(row["ended_at"]))
    why = f": {last['reason']}" if last.get("reason") else ""
    return f"It is gone since {shown_time(last['ended_at'])} ({text_of(last['state'])}{why})."


def changes(rows: Sequence[Row], name: str) -> Records:
    """Return the changes as records; `name` is NAMESPACE/NAME."""
    columns = (
        time_column("WHEN", "at"),
        plain_column("STATUS", "state"),
        plain_column("ATTEMPT", "attempt"),
        plain_column("NODE", "node"),
        TableColumn("CARD", _cards),
        plain_column("REASON", "reason"),
        plain_column("BY", "actor"),
        TableColumn("SCORE", _score, "score"),
        # Of a pod by limits the column would be empty.
        *([TableColumn("CLAIMS", claims_of)] if any(map(claims_of, rows)) else []),
        TableColumn("CARD-UUID", _uuids, wide=True),
        plain_column("UID", "pod_uid", wide=True),
    )
    return Records(
        kind="Change",
        plural="changes",
        columns=columns,
        rows=rows,
        name=lambda row: f"pod/{name}",
    )


def _cards(row: Row) -> str:
    """Return the cards one per line, in the form that `who` accepts; a dash is an unknown index."""
    return "\n".join(
        f"{card['node']}/{'-' if card['index'] is None else card['index']} "
        f"{card['uuid'][:SHORT_UUID]}"
        for card in row.get("cards") or ()
    )


def _uuids(row: Row) -> str:
    return "\n".join(card["uuid"] for card in row.get("cards") or ())


def _score(row: Row) -> str:
    """Return the score of a chosen node; adopted and restored grants have no policy."""
    policy = (row.get("policy") or {}).get("node")
    chosen = row["previous_state"] is None and policy
    return score_text(str(policy), row["score"]) if chosen else ""


def place_changes(
    steps: Iterable[Row],
    slices: Sequence[Row],
    incidents: Iterable[Row],
    since: datetime,
    until: datetime,
) -> Records:
    """Return changes of grants with `slices` on a node or card, and of card health, by time.

    `steps`, `slices` and `incidents` are the answers to `changes`, `who-held-card` and
    `card-incidents`. An incident that began before `since` is shown by its end only.
    """
    cards: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in slices:
        cards[str(row["allocation_id"])][str(row["device_uuid"])] = _card(row)
    rows = [
        _step(row, list(cards[str(row["allocation_id"])].values()))
        for row in steps
        if str(row["allocation_id"]) in cards
    ]
    rows += [
        change
        for incident in incidents
        for change in _of_incident(incident)
        if since <= datetime.fromisoformat(change["at"]) < until
    ]
    return Records(
        kind="Change",
        plural="changes",
        columns=_PLACE_COLUMNS,
        rows=sorted(rows, key=_when),
        name=_place_name,
    )


def _when(row: Row) -> tuple[datetime, int]:
    return datetime.fromisoformat(row["at"]), row["change"] or 0


def _card(row: Row) -> dict[str, Any]:
    return {"node": row["node"], "index": row["card_index"], "uuid": row["device_uuid"]}


_STEP = ("change", "state", "previous_state", "reason", "actor", "namespace", "pod_name", "pod_uid")


def _step(row: Row, cards: list[dict[str, Any]]) -> dict[str, Any]:
    fields = {key: row.get(key) for key in _STEP}
    return {"at": str(row["changed_at"]), **fields, "node": row["node"], "cards": cards}


def _of_incident(row: Row) -> list[dict[str, Any]]:
    """Yield the changes of a card to unhealthy and back."""
    states = ("healthy", "unhealthy", "healthy")
    found = []
    for number, (at, reason) in enumerate(
        ((row["sick_at"], row["health_reason"]), (row["well_at"], None))
    ):
        if at is not None:
            step = {
                "changed_at": at,
                "node": row["node"],
                "state": states[number + 1],
                "previous_state": states[number],
                "reason": reason,
            }
            found.append(_step(step, [_card(row)]))
    return found


def _place_name(row: Row) -> str:
    if row["pod_name"] is None:
        return f"device/{row['cards'][0]['uuid']}"
    return f"pod/{row['namespace']}/{row['pod_name']}"


def _place_pod(row: Row) -> str:
    return "-" if row["pod_name"] is None else f"{row['namespace']}/{row['pod_name']}"


def _place_state(row: Row) -> str:
    sign = {"unhealthy": "✖ ", "healthy": "● "}.get(str(row["state"]), "")
    return f"{sign}{row['state']}"


def _place_cards(row: Row) -> str:
    return ", ".join(f"{card['node']}/{card['index']}" for card in row["cards"])


def _place_uuids(row: Row) -> str:
    return ", ".join(str(card["uuid"]) for card in row["cards"])


_PLACE_COLUMNS = (
    time_column("WHEN", "at"),
    TableColumn("STATUS", _place_state, "state"),
    TableColumn("POD", _place_pod, "pod_name"),
    TableColumn("CARD", _place_cards),
    TableColumn("REASON", lambda row: row["reason"] or "-", "reason"),
    plain_column("BY", "actor", absent="-"),
    TableColumn("CARD-UUID", _place_uuids, wide=True),
    plain_column("UID", "pod_uid", wide=True, absent="-"),
)
