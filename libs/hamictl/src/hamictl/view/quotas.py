"""Quotas of namespaces for people: memory in MiB and GiB, cores in percent. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hamictl.output.records import Records, Row, TableColumn
from hamictl.questions import Answered
from hamictl.view.named import records_of
from hamictl.view.tables import memory

AMOUNTS = {"limit_amount": "LIMIT", "used_amount": "USED", "left_amount": "LEFT"}
"""Columns whose unit is the resource's own -> their headers."""


def quota_records(answer: Answered) -> Records:
    """The answer to the question `quota`."""
    found = records_of(answer)
    columns = [
        TableColumn(AMOUNTS[column.key], partial(quota_amount, column.key), column.key)
        if column.key in AMOUNTS
        else column
        for column in found.columns
    ]
    return replace(found, plural="quotas", columns=columns)


def quota_amount(key: str, row: Row) -> str:
    """An amount with the unit that follows from the name of the resource.

    >>> quota_amount("used_amount", {"resource": "nvidia.com/gpumem", "used_amount": 20480})
    '20 GiB'
    >>> quota_amount("used_amount", {"resource": "nvidia.com/gpucores", "used_amount": 130})
    '130 %'
    """
    amount = row.get(key)
    if amount is None:
        return "no limit"
    name = str(row["resource"]).partition("/")[2].lower()
    if "mem" in name:
        return memory(int(amount))
    return f"{amount} %" if "core" in name else str(amount)
