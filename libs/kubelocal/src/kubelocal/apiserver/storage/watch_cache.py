"""The recent past of one collection, and who waits for its next change.

The store appends each committed change; a watch walks the list from its resourceVersion on. Each
change is encoded once per face of the API, however many watch. A watch that asks for what has been
forgotten gets 410 and lists again, as from the real server.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field

from kubelocal.apiserver.errors import expired
from kubelocal.apiserver.storage import selectors
from kubelocal.apiserver.storage.objects import Stored

# Enough for minutes of a busy cluster; a version is a few KiB, so some 50 MiB at the worst.
HISTORY_LENGTH = 8192


@dataclass(slots=True)
class WatchChange:
    """`before` is the version that `now` replaced; of a deletion, `now` is the last state."""

    kind: str  # ADDED, MODIFIED or DELETED
    now: Stored
    before: Stored | None
    lines: dict[tuple[str, str], bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSelection:
    """Which objects a list or watch wants."""

    namespace: str = ""
    labels: selectors.Predicate = selectors.everything
    fields: selectors.Predicate = selectors.everything

    def takes(self, stored: Stored) -> bool:
        """Whether this version is wanted."""
        return (
            (not self.namespace or stored.namespace == self.namespace)
            and self.labels(stored.labels)
            and self.fields(stored.fields)
        )

    def kind_of(self, change: WatchChange) -> str:
        """What the change is to this watcher; an empty string where it is nothing."""
        was = change.before is not None and self.takes(change.before)
        now = change.kind != "DELETED" and self.takes(change.now)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else ""


class History:
    """The changes of one collection after `forgotten` (a resourceVersion)."""

    def __init__(self, forgotten: int) -> None:
        self.forgotten = forgotten
        self._versions: list[int] = []
        self._changes: list[WatchChange] = []
        self._next: asyncio.Future[None] | None = None

    def append(self, change: WatchChange) -> None:
        self._versions.append(change.now.version)
        self._changes.append(change)
        if len(self._changes) > 2 * HISTORY_LENGTH:
            self._forget(len(self._changes) - HISTORY_LENGTH)

    def compact(self, version: int) -> None:
        """Forget everything up to `version`."""
        self._forget(bisect_right(self._versions, version))
        self.forgotten = max(self.forgotten, version)

    def after(self, version: int) -> list[WatchChange]:
        """The changes later than `version`. Raises: ApiError (410) where some are forgotten."""
        if version < self.forgotten:
            raise expired(version, self.forgotten)
        return self._changes[bisect_right(self._versions, version) :]

    def wake(self) -> None:
        """Wake everybody who waits: there is something to read."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next `wake`, or until the time is over."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=timeout_s)

    def _forget(self, count: int) -> None:
        if count:
            self.forgotten = max(self.forgotten, self._versions[count - 1])
            del self._versions[:count], self._changes[:count]
