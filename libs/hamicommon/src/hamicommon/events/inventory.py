"""Cards of a node, as its agent reports them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from hamicommon.events.payload import MAX_AMOUNT, Amount, Count, NodePayload
from hamicommon.events.subjects import inventory_subject

MAX_CARDS = 1024
"""Cards of one node; far beyond any machine."""
HEARTBEAT_S = 10.0
"""An agent repeats its inventory at least this often."""


PairScore = Annotated[int, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]


class MigProfileItem(BaseModel):
    """See domain.devices.MigProfile."""

    name: str
    memory_mib: Amount
    core_percent: Amount
    slice_count: Amount
    placements: tuple[tuple[Amount, Amount], ...] = ()


class InventoryDevice(BaseModel):
    """One card in an inventory; units as in domain.devices.GpuDevice."""

    uuid: str = Field(min_length=1, max_length=256)
    index: Amount
    vendor: str = Field(min_length=1)
    type: str
    slots: Amount
    memory_mib: Amount
    core_percent: Amount
    numa: int = Field(default=0, ge=-1, le=MAX_AMOUNT)
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfileItem, ...] = ()
    info: dict[str, Any] = Field(default_factory=dict)


class Inventory(NodePayload):
    """All cards of a node; sent on change and as heartbeat."""

    subject_of = staticmethod(inventory_subject)

    agent_id: str
    """Changes with every start of the agent."""
    sequence: Count
    """Grows within one agent_id; a lower one is stale."""
    observed_at: AwareDatetime
    """By the node's own clock: good for its skew, not for an order."""
    devices: tuple[InventoryDevice, ...]
    pair_scores: dict[str, dict[str, PairScore]] = Field(default_factory=dict)
    malformed: tuple[str, ...] = Field(default=(), exclude=True)
    """Faults of cards that could not be read; the others are in `devices`."""

    @model_validator(mode="wrap")
    @classmethod
    def _leave_out_malformed_cards(
        cls, data: Any, handler: ModelWrapValidatorHandler[Inventory]
    ) -> Inventory:
        """One card that can't be read takes no other with it."""
        try:
            return handler(data)
        except ValidationError as exc:
            wrong = {at[1]: error["msg"] for error in exc.errors() if _is_card(at := error["loc"])}
            if len(wrong) == 0 or any(not _is_card(error["loc"]) for error in exc.errors()):
                raise
            kept = [card for i, card in enumerate(data["devices"]) if i not in wrong]
            problems = tuple(f"card {i} of the report: {msg}" for i, msg in sorted(wrong.items()))
            return handler({**data, "devices": kept, "malformed": problems})


def _is_card(location: tuple[int | str, ...]) -> bool:
    return len(location) > 2 and location[0] == "devices" and isinstance(location[1], int)
