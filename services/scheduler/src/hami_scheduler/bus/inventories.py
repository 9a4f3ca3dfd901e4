"""Consume `hami.inventory.v1.*`, the cards that nodes report.

Every agent repeats its inventory every 10 s; in a cluster of 10,000 nodes that is a thousand
messages a second, nearly all unchanged. Of a repetition only the head is parsed. Every 30 s a
report is compared with the ledger's cards even if unchanged, in one transaction for all nodes that
arrived together.

A report that is older than the ledger's state is ignored, but the node counts as heard. If an
agent's reports are ignored repeatedly, the agent is right and the ledger's number of it is wrong:
the number is forgotten, journalled, and the report is accepted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from hamicommon.bus.client import Message
from hamicommon.bus.inventories import inventory_of
from hamicommon.bus.reader import read_of_node
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.events import Inventory, inventory_subject

from hami_scheduler.drift import Drift, NodeProblems
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import AgentInventory, RecordedInventory

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.inventory import PostgresInventory

logger = logging.getLogger(__name__)

COMPARE_INTERVAL_S = 30.0
"""Interval after which unchanged cards are compared with the ledger again (LIVE-2)."""
_DEVICES = b'"devices":'
MAX_IGNORED = 3
"""Number of ignored reports of one agent after which its sequence number is believed."""
WRONG_NUMBER = "inventory-number"
"""Class of such differences in the drift journal."""
CLOCK_SKEW_S = 5.0
"""Difference of clocks that is not reported, as reports travel for a second or two."""


@dataclass(slots=True)
class _LastInventory:
    agent_id: str
    cards: bytes
    """Digest of the cards, which takes less memory."""
    compared_at: float
    """Monotonic time of the last comparison with the ledger."""


@dataclass(slots=True)
class _IgnoredReports:
    """Successive reports of a node that were ignored."""

    agent_id: str
    sequence: int
    """Sequence number of the latest one."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Report:
    number: int
    """Position among messages that arrived together."""
    inventory: Inventory
    message: Message

    cards: bytes
    """Digest of the message's cards."""
    repeats: bool = False
    """Whether the cards equal those of the last report, so that they were not parsed."""

    @property
    def node(self) -> NodeName:
        return NodeName(self.inventory.node)

    def for_the_ledger(self) -> AgentInventory:
        return AgentInventory(
            inventory=inventory_of(self.inventory, received_at=self.message.received_at),
            agent_id=self.inventory.agent_id,
            sequence=self.inventory.sequence,
        )


@dataclass(eq=False, kw_only=True)
class InventoryReports:
    """Consumer of inventories.

    `on_written` gets the nodes whose cards changed in the ledger.
    """

    store: PostgresInventory
    view: ClusterState
    refused: NodeProblems
    drift: Drift
    instruments: SchedulerInstruments
    on_report: Callable[[NodeName], None]
    on_written: Callable[[Collection[NodeName]], None]
    _last: dict[str, _LastInventory] = field(default_factory=dict, init=False)
    """Last inventory by subject."""
    _ignored: dict[NodeName, _IgnoredReports] = field(default_factory=dict, init=False)
    _skewed: set[str] = field(default_factory=set, init=False)

    async def handle_all(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        """Write inventories to the ledger, those of one node in order.

        Each element is None, or why the message was not accepted: InvalidRequest, Conflict,
        Unavailable, or an unexpected error.
        """
        answers: list[Exception | None] = [None] * len(messages)
        due: list[_Report] = []
        for number, message in enumerate(messages):
            try:
                report = self._read(number, message)
            except InvalidRequest as exc:
                answers[number] = exc
                continue
            self._note_clock(report)
            if report.repeats:
                self.on_report(report.node)
            else:
                due.append(report)
        for together in _of_different_nodes(due):
            await self._take(together, answers)
        return answers

    def _read(self, number: int, message: Message) -> _Report:
        """Parse a report; the cards of one that repeats the last are skipped.

        Raises: InvalidRequest.
        """
        head, devices, tail = message.data.partition(_DEVICES)
        cards = blake2b(tail, digest_size=16).digest()
        last = self._last.get(message.subject)
        if last is not None and last.cards == cards and _is_fresh(last):
            short = replace(message, data=head + devices + b"[]}")
            with suppress(InvalidRequest):  # also where the key stands elsewhere
                inventory = _inventory(short)
                if inventory.agent_id == last.agent_id:
                    return _Report(number, inventory, message, cards, repeats=True)
        return _Report(number, _inventory(message), message, cards)

    async def _take(self, reports: Sequence[_Report], answers: list[Exception | None]) -> None:
        """Write all reports together, or one by one if one of them prevents that."""
        try:
            recorded = await self.store.record_all([each.for_the_ledger() for each in reports])
            await self._apply(reports, recorded)
        except Exception as exc:  # noqa: BLE001 - settled by who delivered them
            if isinstance(exc, Unavailable) or len(reports) == 1:
                for report in reports:
                    answers[report.number] = exc
                return
            for report in reports:
                await self._take([report], answers)

    async def _apply(
        self, reports: Sequence[_Report], recorded: Sequence[RecordedInventory | None]
    ) -> None:
        changed: set[NodeName] = set()
        for report, written in zip(reports, recorded, strict=True):
            subject, inventory, node = report.message.subject, report.inventory, report.node
            if written is None:
                await self._ignore(report)
                continue
            self._ignored.pop(node, None)
            malformed = dict.fromkeys(inventory.malformed, "malformed")
            await self.refused.note(node, {**malformed, **written.refused})
            self.on_report(node)
            last = self._last.get(subject)
            if written.changed or (last is not None and last.cards != report.cards):
                changed.add(node)
            self._last[subject] = _LastInventory(
                inventory.agent_id, report.cards, compared_at=time.monotonic()
            )
        if changed:
            try:
                await self.view.refresh_nodes(*changed)
            finally:
                # A message that is delivered again has no news for the ledger.
                self.on_written(changed)

    async def _ignore(self, report: _Report) -> None:
        """Ignore a report with an older number. Raises: Unavailable; then it is delivered again."""
        inventory, node = report.inventory, report.node
        self.instruments.inventories_ignored.inc()
        self.on_report(node)
        logger.info(
            "Ignoring an inventory older than the known one",
            extra={"node": node, "agent_id": inventory.agent_id},
        )
        before = self._ignored.get(node)
        if before is None or before.agent_id != inventory.agent_id:
            self._ignored[node] = _IgnoredReports(inventory.agent_id, inventory.sequence)
            return
        if inventory.sequence > before.sequence:
            before.sequence, before.count = inventory.sequence, before.count + 1
        if before.count < MAX_IGNORED:
            return
        known = await self.store.forget_number(node)
        del self._ignored[node]
        if known is not None:
            detail = (
                f"the ledger had number {known} of its agent, which reports {inventory.sequence};"
                " the agent's reports are accepted again"
            )
            await self.drift.note(WRONG_NUMBER, node, detail, repaired=True)

    def forget(self, node: str) -> None:
        """Forget a deleted node; its next inventory is written without a comparison."""
        self._last.pop(inventory_subject(node), None)
        self._ignored.pop(NodeName(node), None)
        self.refused.forget(NodeName(node))
        self._forget_clock(node)

    def _note_clock(self, report: _Report) -> None:
        ahead = report.inventory.observed_at - report.message.received_at
        if abs(ahead.total_seconds()) > CLOCK_SKEW_S:
            self.instruments.clock_skew.labels(report.node).set(ahead.total_seconds())
            self._skewed.add(report.node)
        else:
            self._forget_clock(report.node)

    def _forget_clock(self, node: str) -> None:
        if node in self._skewed:
            self._skewed.discard(node)
            self.instruments.clock_skew.remove(node)


def _is_fresh(last: _LastInventory) -> bool:
    return time.monotonic() - last.compared_at < COMPARE_INTERVAL_S


def _inventory(message: Message) -> Inventory:
    """Read an inventory from a message. Raises: InvalidRequest."""
    return read_of_node(Inventory, message.subject, message.data, "inventory")


def _of_different_nodes(reports: Sequence[_Report]) -> list[list[_Report]]:
    """Split reports into lists with one report per node each; keep each node's order."""
    found: list[list[_Report]] = []
    before: dict[str, int] = {}
    for report in reports:
        turn = before.get(report.node, 0)
        before[report.node] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(report)
    return found
