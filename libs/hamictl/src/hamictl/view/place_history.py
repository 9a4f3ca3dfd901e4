"""What `hamictl history` shows of a node or a card: steps of its grants, and its health. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hamictl.output.presentation import shown_time
from hamictl.output.records import Records, Row, TableColumn
from hamictl.view.tables import of


def place_changes(
    steps: Iterable[Row],
    slices: Sequence[Row],
    incidents: Iterable[Row],
    since: datetime,
    until: datetime,
) -> Records:
    """The steps of those grants whose `slices` are on it, and what its cards' health did, by time.

    `steps`, `slices` and `incidents` are the answers to `changes`, `who-held-card` and
    `card-incidents`. An incident that began before `since` is shown by its end alone.
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
        columns=_COLUMNS,
        rows=sorted(rows, key=_when),
        name=_name,
    )


def _when(row: Row) -> tuple[datetime, int]:
    return datetime.fromisoformat(row["at"]), row["change"] or 0


def _card(row: Row) -> dict[str, Any]:
    return {"node": row["node"], "index": row["card_index"], "uuid": row["device_uuid"]}


def _step(row: Row, cards: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "at": str(row["changed_at"]),
        "change": row["change"],
        "state": row["state"],
        "previous_state": row["previous_state"],
        "reason": row["reason"],
        "actor": row["actor"],
        "namespace": row["namespace"],
        "pod_name": row["pod_name"],
        "pod_uid": row["pod_uid"],
        "node": row["node"],
        "cards": cards,
    }


def _of_incident(row: Row) -> list[dict[str, Any]]:
    """That the card fell sick, and that it is well again."""
    plain: dict[str, Any] = {
        "change": None,
        "actor": None,
        "namespace": None,
        "pod_name": None,
        "pod_uid": None,
        "node": row["node"],
        "cards": [_card(row)],
    }
    sick, well = (
        {"state": "unhealthy", "previous_state": "healthy"},
        {
            "state": "healthy",
            "previous_state": "unhealthy",
        },
    )
    found = [{"at": str(row["sick_at"]), "reason": row["health_reason"], **sick, **plain}]
    if row["well_at"] is not None:
        found.append({"at": str(row["well_at"]), "reason": None, **well, **plain})
    return found


def _name(row: Row) -> str:
    if row["pod_name"] is None:
        return f"device/{row['cards'][0]['uuid']}"
    return f"pod/{row['namespace']}/{row['pod_name']}"


def _pod(row: Row) -> str:
    return "-" if row["pod_name"] is None else f"{row['namespace']}/{row['pod_name']}"


def _state(row: Row) -> str:
    sign = {"unhealthy": "✖ ", "healthy": "● "}.get(str(row["state"]), "")
    return f"{sign}{row['state']}"


def _cards(row: Row) -> str:
    return ", ".join(f"{card['node']}/{card['index']}" for card in row["cards"])


def _uuids(row: Row) -> str:
    return ", ".join(str(card["uuid"]) for card in row["cards"])


def _text(key: str) -> Any:
    def shown(row: Mapping[str, Any]) -> str:
        return of(row[key]) or "-"

    return shown


_COLUMNS = (
    TableColumn("WHEN", lambda row: shown_time(row["at"]), "at"),
    TableColumn("STATE", _state, "state"),
    TableColumn("POD", _pod, "pod_name"),
    TableColumn("CARD", _cards),
    TableColumn("REASON", _text("reason"), "reason"),
    TableColumn("BY", lambda row: of(row["actor"]) if row["actor"] else "-", "actor"),
    TableColumn("CARD-UUID", _uuids, wide=True),
    TableColumn("UID", lambda row: of(row["pod_uid"]) if row["pod_uid"] else "-", "pod_uid", True),
)
