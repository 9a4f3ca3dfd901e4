"""Steps of many allocations as one statement makes them: each allocation's own, in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId
from hamicommon.ledger.model import StateStep


def ways_of(steps: Sequence[StateStep]) -> list[list[StateStep]]:
    """The steps that one statement can make, those of an allocation together and in their order.

    What neither goes on where the others end nor ends where they begin is left out.
    """
    ways: dict[AllocationId, list[StateStep]] = {}
    for step in steps:
        way = ways.setdefault(step.allocation_id, [])
        if not way or _goes_on(way[-1], step):
            way.append(step)
        elif _goes_on(step, way[0]):
            way.insert(0, step)
    return list(ways.values())


def _goes_on(before: StateStep, step: StateStep) -> bool:
    return (
        step.sources == {before.target}
        and step.token == before.token
        and not (before.new_token or step.new_token)
    )


def way_columns(ways: Sequence[Sequence[StateStep]]) -> list[list[Any]]:
    """Parameters of ADVANCE_ALL: one array per column. Each step has one source."""
    whole = [
        (
            way[0].allocation_id,
            _source(way[0]),
            way[-1].target,
            way[-1].reason,
            way[-1].new_token,
            way[-1].lease_s,
            way[0].token,
            next((step.node for step in way if step.node is not None), None),
            any(step.target is AllocationState.BOUND for step in way),
        )
        for way in ways
    ]
    parts = [
        (step.allocation_id, number, _source(step), step.target, step.reason, step.actor)
        for way in ways
        for number, step in enumerate(way)
    ]
    return [list(column) for rows in (whole, parts) for column in zip(*rows, strict=True)]


def _source(step: StateStep) -> AllocationState:
    [source] = step.sources
    return source
