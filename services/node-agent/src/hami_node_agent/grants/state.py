"""State of the running agent: grants in memory and records on disk, with change signals.

`feed.py` fills the book, `allocate.py` and `prestart.py` change the records,
`reports.py` empties the queue of reports. A change of the records counts only when it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.errors import Unavailable

from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.ports import StateStore
from hami_node_agent.grants.records import AgentState

logger = logging.getLogger(__name__)


class Signal:
    """Wake all waiting tasks on a change; versions show what a task has seen."""

    def __init__(self) -> None:
        self.version = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Signal a change."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, timeout_s: float | None = None) -> int:
        """Wait until the version differs from `seen`, or for `timeout_s`; return the version."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == seen:
                    await self._event.wait()
        except TimeoutError:
            pass
        return self.version


class NodeState:
    """Grants, records and cards of this node."""

    def __init__(self, store: StateStore, state: AgentState) -> None:
        self._store = store
        self._saving = asyncio.Lock()
        self._state = state
        self._book = GrantBook()
        self.cards: Mapping[GpuUuid, GpuDevice] = MappingProxyType({})
        self.book_changed = Signal()
        self.reports_changed = Signal()

    @property
    def saved(self) -> AgentState:
        """Return the state as it is on disk."""
        return self._state

    def card_at(self, index: str) -> GpuUuid | None:
        """Return the card with this NVML index (decimal text); None if there is none."""
        if not index.isdigit():
            return None
        return next((c.uuid for c in self.cards.values() if str(c.index) == index), None)

    @property
    def book(self) -> GrantBook:
        """Return the grants."""
        return self._book

    @book.setter
    def book(self, book: GrantBook) -> None:
        if book is not self._book:
            self._book = book
            self.book_changed.notify()

    async def change(
        self,
        edit: Callable[[AgentState], AgentState],
        *,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Apply `edit` to the newest state and save the result before others see it.

        The only lock of the node is held until then: an edit whose grounds are gone raises, and
        nothing is changed. Raises: Unavailable.

        `first` is done before in the same thread (blocking): files that the records will name.
        Whatever it raises, nothing is changed then.
        """
        async with self._saving:
            after = edit(self._state)
            if after == self._state:
                if first is not None:
                    await asyncio.to_thread(first)
                return
            # Shielded: a cancelled caller must not leave disk and memory different.
            await asyncio.shield(self._save(after, first))

    async def remember_tokens(self, grants: Iterable[NodeGrant]) -> None:
        """Save the newest token of each pod."""
        await self._remember({grant.pod_uid: grant.token for grant in grants})

    async def remember_withdrawal(self, pod_uid: PodUid, token: int) -> None:
        """Save that the binding attempts up to this token are over."""
        await self._remember({pod_uid: token + 1})

    async def _remember(self, tokens: Mapping[PodUid, int]) -> None:
        try:
            await self.change(lambda saved: saved.with_least_tokens(tokens))
        except Unavailable as exc:
            logger.warning(
                "Failed to save which binding attempts are over; a restart forgets them",
                extra={"error": str(exc)},
            )

    async def _save(self, after: AgentState, first: Callable[[], None] | None) -> None:
        def write() -> None:
            if first is not None:
                first()
            self._store.save(after)

        await asyncio.to_thread(write)
        queued = len(after.reports) > len(self._state.reports)
        self._state = after
        if queued:
            self.reports_changed.notify()
