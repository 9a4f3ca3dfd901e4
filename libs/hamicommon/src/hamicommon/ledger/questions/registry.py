"""All questions by name."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from hamicommon.errors import NotFound
from hamicommon.ledger.questions.catalogue import audit, billing, cards, pods, usage, waiting
from hamicommon.ledger.questions.question import Question


@cache
def questions() -> MappingProxyType[str, Question]:
    """By name, in the order of their numbers."""
    found = [
        each
        for subject in (waiting, cards, pods, usage, billing, audit)
        for each in subject.QUESTIONS
    ]
    return MappingProxyType({each.name: each for each in sorted(found, key=_order)})


def _order(question: Question) -> int:
    return question.number


def question(name: str) -> Question:
    """Raises: NotFound, with the nearest name."""
    try:
        return questions()[name]
    except KeyError:
        near = get_close_matches(name[:60], questions(), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(f"there is no question {name[:60]!r}{meant}") from None
