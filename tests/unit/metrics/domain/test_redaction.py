"""Redaction of another namespace's slice."""

from __future__ import annotations

import pytest
from hami_metrics.domain.redaction import ShowOwners, redact_rows
from hamicommon.ledger.questions import question

WHERE = question("what-runs-where")
ROW = {column.name: f"<{column.name}>" for column in WHERE.columns}
MINE = {**ROW, "namespace": "team-a"}
THEIRS = {**ROW, "namespace": "team-b"}


def test_ones_own_slices_and_what_belongs_to_nobody_are_shown_as_they_are() -> None:
    unknown, nobody = {**ROW, "namespace": None}, {**ROW, "namespace": ""}
    rows = (MINE, unknown, nobody)

    assert redact_rows(WHERE, rows, seen=frozenset({"team-a"}), show=ShowOwners.SIZES) == rows


@pytest.mark.parametrize(
    ("show", "namespace"), [(ShowOwners.SIZES, "other"), (ShowOwners.NAMESPACES, "team-b")]
)
def test_anothers_slice_keeps_its_size_and_loses_its_names(
    show: ShowOwners, namespace: str
) -> None:
    (shown,) = redact_rows(WHERE, [THEIRS], seen=frozenset({"team-a"}), show=show)

    assert shown["namespace"] == namespace
    for name in ("memory_bytes", "core_ratio", "device_uuid", "node", "reserved_at"):
        assert shown[name] == ROW[name]
    for name in ("pod_name", "pod_uid", "container", "allocation_id", "owner_name", "reason"):
        assert shown[name] is None


def test_names_are_shown_where_the_setting_allows_it() -> None:
    shown = redact_rows(WHERE, [THEIRS], seen=frozenset(), show=ShowOwners.NAMES)

    assert shown == (THEIRS,)
