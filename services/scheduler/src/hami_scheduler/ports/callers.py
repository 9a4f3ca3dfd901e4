"""Who called the operators' API, and where calls that change something are kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class CallSource(StrEnum):
    """How it is known who calls."""

    TOKEN = "token"
    """A Kubernetes token, by the API server's review."""
    OPEN = "open"
    """Nothing is asked of callers (a local system): the user is unknown and empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCaller:
    """Who calls, as Kubernetes' audit log names people."""

    user: str
    """Such as `system:serviceaccount:default:ann`, or the name that an identity provider gives."""
    groups: tuple[str, ...] = ()
    source: CallSource


class CallOutcome(StrEnum):
    """What became of a call; one that was cut off stays `begun`."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """The caller may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """A call that changes something, or would; its texts are clipped."""

    caller: OperatorCaller
    address: str
    """That it came from; empty: unknown."""
    verb: str
    """`adopt`, `send-dead-letter`; `METHOD path` of what is none of ours."""
    object: str = ""
    """What it is about: the number of a letter, or the body."""


class CallJournal(Protocol):
    """Where calls of operators are kept. Raises: Unavailable, Conflict."""

    async def begin(self, call: OperatorCall) -> int:
        """Writes the call as begun; returns its number."""
        ...

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """Writes what became of it."""
        ...

    async def refused(self, call: OperatorCall, message: str) -> None:
        """Writes that the caller may not; an identical one of the hour is counted on its row."""
        ...
