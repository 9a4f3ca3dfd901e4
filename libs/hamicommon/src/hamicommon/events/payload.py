"""Base class of all payloads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

NodeField = Annotated[
    str, Field(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
]
"""A node's name as Kubernetes has it; no two of them are one token of a subject."""


MAX_COUNT = 2**53 - 1
"""The limit of a number that only grows; the ledger's columns have the same."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MAX_AMOUNT = 2**31 - 1
"""HAMi's annotations and the ledger's columns hold 32 bits."""
Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown fields are ignored so that readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1


class NodePayload(Payload):
    """Base of what a node sends, or answers, on a subject of its own.

    Only `bus.reader.read_of_node` decodes one: it compares `node` with the subject, which the bus
    server guards.
    """

    node: NodeField

    @staticmethod
    def subject_of(node: str) -> str:
        """The node's subject for this payload."""
        raise NotImplementedError
