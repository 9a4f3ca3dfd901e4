"""Named questions to the ledger: one query each, used by pages, commands and dashboards.

A question is its SQL (a file in `sql`, with `:name` for each parameter) and its entry in the
registry: number and title, typed parameters with defaults, columns with their units, and the key by
which its answer is paged. `answer` runs it: read only, within two seconds, a page at a time. Only
this package has SQL for users' questions.
"""

from __future__ import annotations

from hamicommon.ledger.questions.answering import MAX_ROWS, PAGE_ROWS, TIMEOUT_MS, Answer, answer
from hamicommon.ledger.questions.catalogue import question, questions
from hamicommon.ledger.questions.question import (
    AnswerColumn,
    Audience,
    ColumnKind,
    Parameter,
    ParameterKind,
    Question,
)

__all__ = [
    "MAX_ROWS",
    "PAGE_ROWS",
    "TIMEOUT_MS",
    "Answer",
    "AnswerColumn",
    "Audience",
    "ColumnKind",
    "Parameter",
    "ParameterKind",
    "Question",
    "answer",
    "question",
    "questions",
]
