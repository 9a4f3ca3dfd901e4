"""The questions of docs/sql.md: every ```sql block under a `###` heading."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"

_QUESTION = re.compile(
    r"^### (?P<title>.+?)$(?P<before>(?:(?!^#).)*?)^```sql\n(?P<sql>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def questions(document: Path = DOCUMENT) -> dict[str, str]:
    """Title -> query, in the order of the document."""
    return {found["title"]: found["sql"] for found in _QUESTION.finditer(document.read_text())}
