"""Named questions, as the metrics service answers them (docs/sql.md, Named questions)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hamictl.scheduler_client import Row
from hamictl.target import Installation

PATH = "/api/v1/questions"
PAGE_ROWS = 1000
MAX_ROWS = 100_000
"""Pages are asked for until so many rows; who wants more narrows the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A whole answer."""

    question: str
    title: str
    as_of: str
    rows: Sequence[Row]
    unknown: frozenset[str]
    """Columns in which a null means unknown; in others it means that there is none."""
    complete: bool
    columns: Sequence[str] = ()
    """Names of all columns; a service of before this field names none."""
    record_began_at: str | None = None
    """Begin of the record, in an answer without rows about an earlier time: that is unknown."""


class QuestionClient:
    """Asks one metrics service."""

    def __init__(self, target: Installation) -> None:
        """Raises: InvalidRequest where no metrics service is known."""
        self._client = target.metrics_client()

    async def questions(self) -> list[Row]:
        """Each with its name, title, parameters and columns. Raises: Unavailable, Forbidden."""
        return await self._client.rows(PATH)

    async def cluster_name(self) -> str:
        """Return the name of the cluster; empty: it has none. Raises: Unavailable, Forbidden."""
        return str((await self._client.get(PATH)).get("cluster") or "")

    async def ask(self, name: str, parameters: Mapping[str, object], *, most: int = 0) -> Answered:
        """The answer, all pages of it, or the first `most` rows.

        Raises: NotFound for an unknown name, InvalidRequest, Forbidden, Unavailable.
        """
        bound = most or MAX_ROWS
        asked = {key: _text(value) for key, value in parameters.items() if value not in (None, "")}
        rows: list[Row] = []
        after: str | None = None
        while True:
            page = {"limit": str(min(PAGE_ROWS, bound - len(rows)))}
            found = await self._client.get(
                f"{PATH}/{name}", **asked, **page, **({"after": after} if after else {})
            )
            rows += found["rows"]
            after = found.get("next")
            if after is None or len(rows) >= bound:
                break
        return Answered(
            question=str(found["question"]),
            title=str(found.get("title") or name),
            as_of=str(found["asOf"]),
            rows=rows,
            unknown=frozenset(_unknown(found)),
            complete=after is None,
            columns=found.get("columns") or (),
            record_began_at=found.get("recordBeganAt"),
        )


def _unknown(found: Mapping[str, Any]) -> Sequence[str]:
    return list(found.get("unknown") or {})


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
