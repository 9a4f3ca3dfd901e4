"""Answer a question: check parameters, and read one page of rows in a transaction of at most 2 s.

Input: a connection to the ledger (asyncpg), the name, and the caller's parameters. Output:
`Answer`, with the moment for which it is valid and the meaning of its NULLs. `Answer.next` asks for
the next page and keeps that moment: times like `now` and `-7d` mean the same on every page. It
contains the key of the last row, so a user who may not see names must not get it as it is (the
metrics service's API seals it).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import orjson

from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import translate_errors
from hamicommon.ledger.questions.catalogue import question as named
from hamicommon.ledger.questions.question import SQL_TYPES, ColumnKind, Question, Value

# Rows of nodes and devices stay when the hardware goes; pods are known while a grant, a decision
# of a month, or a step of theirs is kept.
_KNOWN: Mapping[str, str] = {
    "card": "SELECT EXISTS (SELECT 1 FROM devices WHERE uuid = $1)",
    "node": "SELECT EXISTS (SELECT 1 FROM nodes WHERE name = $1)"
    " OR EXISTS (SELECT 1 FROM devices WHERE node = $1)",
    "type": "SELECT EXISTS (SELECT 1 FROM devices WHERE type = $1)"
    " OR EXISTS (SELECT 1 FROM device_periods WHERE type = $1)",
    "pod_uid": "SELECT EXISTS (SELECT 1 FROM allocations WHERE pod_uid = $1)"
    " OR EXISTS (SELECT 1 FROM decisions WHERE pod_uid = $1)",
}
_POD_KNOWN = """
SELECT EXISTS (SELECT 1 FROM allocations WHERE namespace = $1 AND pod_name = $2)
    OR EXISTS (SELECT 1 FROM decisions WHERE namespace = $1 AND pod_name = $2
                  AND outcome <> 'placed' AND at > now() - interval '31 days')
"""
_TERMS = {"card": "card", "node": "node", "type": "card of type", "pod_uid": "pod of uid"}


async def check_known(connection: Connection, values: Mapping[str, Value]) -> None:
    """Check names among the parameters. Raises: NotFound with the first that was never known."""
    for parameter, query in _KNOWN.items():
        name = values.get(parameter)
        if isinstance(name, str) and not await connection.fetchval(query, name):
            raise NotFound(f"the ledger has no {_TERMS[parameter]} {name}")
    namespace, pod = values.get("namespace"), values.get("pod")
    if (
        isinstance(namespace, str)
        and isinstance(pod, str)
        and values.get("pod_uid") is None
        and not await connection.fetchval(_POD_KNOWN, namespace, pod)
    ):
        raise NotFound(f"the ledger has no pod {namespace}/{pod}")


async def record_began_at(connection: Connection) -> datetime | None:
    """Return when the first card was recorded, before which all is unknown; None: no card was."""
    found: datetime | None = await connection.fetchval("SELECT min(began_at) FROM device_periods")
    return found


_MAX_CHARACTERS = 4096
"""Maximum bytes of a position: some names of 253 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position in an answer: its moment, and the row after which the next page begins."""

    as_of: datetime
    key: tuple[Value, ...]


def write_position(asked: Question, as_of: datetime, row: Mapping[str, Any]) -> str:
    """Encode the position of a page's last row."""
    content = [asked.name, as_of, *(row[name] for name in asked.key)]
    return base64.urlsafe_b64encode(orjson.dumps(content)).decode()


def read_position(asked: Question, text: str) -> Position:
    """Read a position. Raises: InvalidRequest for a text that is none of this question."""
    try:
        if len(text) > _MAX_CHARACTERS:
            raise ValueError("too long")
        name, as_of, *key = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        if name != asked.name or len(key) != len(asked.key):
            raise ValueError("of another question")
        return Position(
            as_of=_time(as_of),
            key=tuple(
                _value(asked.column(name).kind, value)
                for name, value in zip(asked.key, key, strict=True)
            ),
        )
    except (ValueError, TypeError, binascii.Error) as exc:
        raise InvalidRequest(
            f"after: this key is not from {asked.name}; leave it out to start at the first page"
        ) from exc


def _value(kind: ColumnKind, value: object) -> Value:
    match kind, value:
        case ColumnKind.TIME, str():
            return _time(value)
        case ((ColumnKind.SECONDS | ColumnKind.RATIO), int() | float()):
            return float(value)
        case ((ColumnKind.BYTES | ColumnKind.COUNT), int()) if abs(value) < 1 << 63:
            return value
        case ColumnKind.TEXT, str() if "\0" not in value:
            return value
    raise ValueError(f"{value!r} is no {kind}")


def _time(text: object) -> datetime:
    found = datetime.fromisoformat(str(text))
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found.astimezone(UTC)


TIMEOUT_MS = 2000
PAGE_ROWS = 100
MAX_ROWS = 20_000
"""Maximum rows of one page: all slices of 1000 nodes with 8 cards."""
AHEAD = timedelta(minutes=1)
"""Maximum time that the caller's clock may be ahead of the ledger's."""

_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
# What a NULL in a WHERE leaves out is only seen by a plan for these values; compiling pays for
# itself in queries that take seconds.
_SETTINGS = {
    "statement_timeout": str(TIMEOUT_MS),
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
}
# The role, which has only read rights, is set if the login may set it. A replica has the data up to
# its last replayed transaction.
_BEGIN = """
SELECT CASE WHEN pg_is_in_recovery() THEN least(now(), pg_last_xact_replay_timestamp())
            ELSE now() END, {settings},
       (SELECT set_config('role', r.rolname, true) FROM pg_roles r
         WHERE r.rolname = 'hami_reader' AND pg_has_role(current_user, r.oid, 'MEMBER'))
""".format(
    settings=", ".join(
        f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items()
    )
)
_KEY_TYPES: Mapping[ColumnKind, str] = {
    ColumnKind.TIME: "timestamptz",
    ColumnKind.SECONDS: "float8",
    ColumnKind.RATIO: "float8",
    ColumnKind.BYTES: "bigint",
    ColumnKind.COUNT: "bigint",
    ColumnKind.TEXT: "text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One page of the rows that answer a question."""

    question: Question
    as_of: datetime
    """Moment of the first page, to which relative times refer."""
    parameters: Mapping[str, Value]
    """Values of the parameters, with defaults."""
    rows: tuple[Mapping[str, Any], ...]
    """Rows of text, numbers, booleans, lists and aware datetimes; None: see `unknown`."""
    next: str | None = None
    """Position of the next page; None: this is the last one."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Columns with unknown values on this page, and the reason."""
    record_began_at: datetime | None = None
    """Beginning of the record, if the answer is empty and is about a time before it."""


async def answer(
    connection: Connection,
    name: str,
    parameters: Mapping[str, object] | None = None,
    *,
    limit: int = PAGE_ROWS,
    after: str | None = None,
) -> Answer:
    """Answer a question with one page of at most `limit` rows, starting after the position `after`.

    Raises: NotFound for a question, card, node, type or pod that is none, InvalidRequest for
    parameters, limit or `after`; Unavailable when Postgres is unavailable or takes longer than
    `TIMEOUT_MS`.
    """
    asked = named(name)
    if not 1 <= limit <= MAX_ROWS:
        raise InvalidRequest(f"limit: {limit} is not a number of rows from 1 to {MAX_ROWS}")
    position = None if after is None else read_position(asked, after)
    kinds = {column.name: column.kind for column in asked.columns}
    with translate_errors():
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                now: datetime = await connection.fetchval(_BEGIN)
                as_of = (now if position is None else position.as_of).astimezone(UTC)
                values = values_of(asked, parameters or {}, as_of)
                sql, arguments = statement(asked, values, position, limit + 1)
                records = await connection.fetch(sql, *arguments)
                began_at = None
                if not records and position is None:
                    await check_known(connection, values)
                    began_at = await _unless_within(connection, values)
        except asyncpg.QueryCanceledError as exc:
            raise Unavailable(
                f"{name} took longer than {TIMEOUT_MS / 1000:g} s: ask for a shorter time, or for"
                f" one node, card or namespace"
            ) from exc
        except asyncpg.DataError as exc:
            raise InvalidRequest(f"{name} can't be computed for these values: {exc}") from exc
    rows = tuple(
        {key: _plain(value, kinds.get(key)) for key, value in record.items()}
        for record in records[:limit]
    )
    return Answer(
        question=asked,
        as_of=as_of,
        parameters=values,
        rows=rows,
        next=write_position(asked, as_of, rows[-1]) if len(records) > limit else None,
        unknown={
            column.name: column.unknown
            for column in asked.columns
            if column.unknown and any(row[column.name] is None for row in rows)
        },
        record_began_at=began_at,
    )


async def _unless_within(connection: Connection, values: Mapping[str, Value]) -> datetime | None:
    """Return the beginning of the record if the question is about a time before it."""
    moment = values.get("at") or values.get("until")
    if not isinstance(moment, datetime):
        return None
    began_at = await record_began_at(connection)
    return began_at.astimezone(UTC) if began_at is not None and moment < began_at else None


def values_of(asked: Question, given: Mapping[str, object], now: datetime) -> dict[str, Value]:
    """Parse the value of each parameter. Raises: InvalidRequest."""
    known = {parameter.name for parameter in asked.parameters}
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise InvalidRequest(f"{asked.name} has no parameter {name[:60]!r}; {takes}")
    values = {each.name: each.value_of(given.get(each.name), now) for each in asked.parameters}
    if asked.needs and not any(
        all(values[name] is not None for name in way) for way in asked.needs
    ):
        ways = " or ".join(" and ".join(sorted(way)) for way in asked.needs)
        raise InvalidRequest(f"{asked.name} wants {ways}")
    moment, since, until = values.get("at"), values.get("since"), values.get("until")
    if isinstance(moment, datetime) and moment > now + AHEAD:
        raise InvalidRequest(
            f"parameter at: {moment:%F %T}Z is in the future; leave it out for now"
        )
    if isinstance(since, datetime) and isinstance(until, datetime) and since >= until:
        raise InvalidRequest(f"parameter since: {since:%F %T}Z is not before {until:%F %T}Z")
    return values


def statement(
    asked: Question, values: Mapping[str, Value], position: Position | None, limit: int
) -> tuple[str, list[Value]]:
    """Return the SQL of one page for the driver, and its arguments."""
    arguments: list[Value] = []
    places: dict[str, str] = {}

    def place(name: str, sql_type: str, value: Value) -> str:
        if name not in places:
            arguments.append(value)
            places[name] = f"${len(arguments)}::{sql_type}"
        return places[name]

    types = {parameter.name: SQL_TYPES[parameter.kind] for parameter in asked.parameters}
    inner = _PLACEHOLDER.sub(
        lambda found: place(found[1], types[found[1]], values[found[1]]), asked.sql
    )
    condition = ""
    if position is not None:
        after = [
            place(f" {name}", _KEY_TYPES[asked.column(name).kind], value)
            for name, value in zip(asked.key, position.key, strict=True)
        ]
        sign = "<" if asked.descending else ">"
        condition = f"WHERE ({', '.join(asked.key)}) {sign} ({', '.join(after)})"
    order = ", ".join(f"{name}{' DESC' if asked.descending else ''}" for name in asked.key)
    rows = place(" limit", "bigint", limit)
    return (
        f"SELECT * FROM (\n{inner}\n) AS answered {condition} ORDER BY {order} LIMIT {rows}",
        arguments,
    )


def _plain(value: Any, kind: ColumnKind | None) -> Any:
    """Convert a value from the driver: sums of bigint arrive as numeric, objects maybe as text."""
    if kind is ColumnKind.COUNTS and isinstance(value, str):
        return orjson.loads(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value
