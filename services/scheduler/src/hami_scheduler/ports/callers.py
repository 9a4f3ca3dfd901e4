"""Who called the operators' API, and where calls that change something are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class CallSource(StrEnum):
    """How it is known who calls."""

    TOKEN = "token"
    """A Kubernetes token, by the API server's review."""
    CERTIFICATE = "certificate"
    """A client certificate of an authority that the settings name; the user is its common name."""
    OPEN = "open"
    """Nothing is asked of callers (a local system): the user is unknown and empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCaller:
    """Who calls, as Kubernetes' audit log names people."""

    user: str
    """Such as `system:serviceaccount:default:ann`, or the name that an identity provider gives."""
    groups: tuple[str, ...] = ()
    source: CallSource


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """A call that changed something, or may have."""

    at: datetime
    """When it began."""
    caller: OperatorCaller
    verb: str
    """`adopt`, `send-dead-letter`; `METHOD path` of what is none of ours."""
    path: str
    """Of the URL, with the number of the letter; no query."""
    status: int
    """That was answered; 0 when the connection ended before."""


class CallJournal(Protocol):
    """Where calls of operators are kept."""

    async def record(self, call: OperatorCall) -> None:
        """Appends one. Raises: Unavailable."""
        ...
