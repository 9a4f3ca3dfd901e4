"""What the registry knows of a question beside its SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

from hamicommon.ledger.questions.parameters import Parameter


class ColumnKind(StrEnum):
    """What a column holds; units are base units."""

    TEXT = "text"
    TIME = "time"
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    """Shares of a whole, 0 to 1 (more than 1 where more was taken than there was)."""
    COUNT = "count"
    BOOLEAN = "boolean"
    TEXTS = "texts"
    COUNTS = "counts"
    """An object of counts by name."""
    AMOUNT = "amount"
    """In the resource's own unit."""
    MONEY = "money"
    """A decimal number in the price list's currency."""


class Audience(StrEnum):
    """Who may ask."""

    NAMESPACE = "namespace"
    """Everybody who may ask at all; rows of other namespaces lose their names."""
    CLUSTER = "cluster"
    """Who may see the pods of all namespaces."""


_BY_NAME = {
    "cordoned": ColumnKind.BOOLEAN,
    "healthy": ColumnKind.BOOLEAN,
    "present": ColumnKind.BOOLEAN,
    "repaired": ColumnKind.BOOLEAN,
    "stale": ColumnKind.BOOLEAN,
    "live": ColumnKind.BOOLEAN,
    "fits": ColumnKind.BOOLEAN,
    "agrees": ColumnKind.BOOLEAN,
    "reason_counts": ColumnKind.COUNTS,
    "owners": ColumnKind.TEXTS,
    "refusals": ColumnKind.TEXTS,
    **dict.fromkeys(("decision", "change", "finding", "call"), ColumnKind.COUNT),
}
_BY_SUFFIX = {
    "_at": ColumnKind.TIME,
    "_s": ColumnKind.SECONDS,
    "_bytes": ColumnKind.BYTES,
    "_ratio": ColumnKind.RATIO,
    "_count": ColumnKind.COUNT,
    "_index": ColumnKind.COUNT,
    "_amount": ColumnKind.AMOUNT,
    "_cost": ColumnKind.MONEY,
}
_NAMES = frozenset(
    (
        *("pod_name", "pod_uid", "container", "allocation_id", "owner_kind", "owner_name"),
        *("service_account", "created_by", "username", "trace_id"),
        *("message", "summary", "reason", "subject", "detail", "object"),
    )
)
"""Columns that name somebody, or are free text that may. `namespace` is beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """One column of the answer; `unknown` names what a NULL means, empty: there is none."""

    name: str
    kind: ColumnKind
    unknown: str = ""
    none: str = ""
    """What a NULL means where it is known that there is nothing (a period that still lasts)."""

    @property
    def names_somebody(self) -> bool:
        """True of what only those may read who may read the namespace's pods."""
        return self.name in _NAMES


def columns(
    names: str, *, unknown: Mapping[str, str] | None = None, none: Mapping[str, str] | None = None
) -> tuple[AnswerColumn, ...]:
    """From names; the kind follows from the name (`memory_bytes`, `reserved_at`)."""
    unknown, none = unknown or {}, none or {}
    return tuple(
        AnswerColumn(
            name=name, kind=_kind(name), unknown=unknown.get(name, ""), none=none.get(name, "")
        )
        for name in names.split()
    )


def _kind(name: str) -> ColumnKind:
    if name in _BY_NAME:
        return _BY_NAME[name]
    for suffix, kind in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return kind
    return ColumnKind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that can be asked by name."""

    number: int
    """Of the twenty questions (docs/sql.md); several may belong to one."""
    name: str
    title: str
    parameters: tuple[Parameter, ...]
    columns: tuple[AnswerColumn, ...]
    key: tuple[str, ...]
    """Columns without NULL that put the rows in order and distinguish them."""
    descending: bool = False
    audience: Audience = Audience.NAMESPACE
    needs: tuple[frozenset[str], ...] = field(default=())
    """Of each set of parameters one way must be given, for example a pod's uid or its name."""

    @property
    def sql(self) -> str:
        """The query, with `:name` for parameters."""
        return _sql(self.name)

    def column(self, name: str) -> AnswerColumn:
        """Raises: KeyError."""
        return next(column for column in self.columns if column.name == name)


@cache
def _sql(name: str) -> str:
    return (files("hamicommon.ledger.questions") / "sql" / f"{name}.sql").read_text().strip()
