"""Client for named questions, which the metrics service answers (docs/sql.md)."""

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
"""Maximum number of rows that are fetched, page by page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """Complete answer to a question."""

    question: str
    title: str
    as_of: str
    rows: Sequence[Row]
    unknown: frozenset[str]
    """Columns in which null means unknown; in others it means none."""
    complete: bool
    columns: Sequence[str] = ()
    """Names of all columns; empty from older services."""
    record_began_at: str | None = None
    """Beginning of the record, if the answer has no rows and is about an earlier time."""


class QuestionClient:
    """Client of one metrics service."""

    def __init__(self, target: Installation) -> None:
        """Connect to the target's metrics service. Raises: InvalidRequest if none is known."""
        self._client = target.metrics_client()

    async def questions(self) -> list[Row]:
        """Return all questions with title, parameters and columns.

        Raises: Unavailable, Forbidden.
        """
        return await self._client.rows(PATH)

    async def cluster_name(self) -> str:
        """Return the name of the cluster; empty if it has none. Raises: Unavailable, Forbidden."""
        return str((await self._client.get(PATH)).get("cluster") or "")

    async def ask(
        self, name: str, parameters: Mapping[str, object], *, most: int = 0
    ) -> QuestionAnswer:
        """Return all pages of the answer, or its first `most` rows.

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
        return QuestionAnswer(
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
