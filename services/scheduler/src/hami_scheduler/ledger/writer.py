"""Write grants: commands that arrive together are committed in one transaction.

A batch takes the commands that arrived during the last commit, or within one window of its begin,
so a burst costs a few commits and a single pod waits only for its own. A failing command does not
affect others, whatever the error: a value that Postgres refuses never ends the process or blocks
other commands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.model import Change, Command, Entry, StateStep

from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)

MAX_BATCH = 128
"""Maximum commands in one transaction: some 20 ms of Postgres."""

Answer = Change | HamiError | None
"""The change, the error of a refused command, or None for a step that is not due."""
OnCommitted = Callable[[Sequence[tuple[Command, Answer]]], None]


@dataclass(slots=True, eq=False)
class _QueuedCommands:
    commands: Sequence[Command]
    """Commands of one transaction."""
    answers: Sequence[asyncio.Future[Answer]] = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.answers = [loop.create_future() for _ in self.commands]


class LedgerWriter:
    """Writer that commits commands in batches."""

    def __init__(
        self, store: AllocationStore, *, window_s: float, on_committed: OnCommitted
    ) -> None:
        """Create the instance.

        Two commits begin at least `window_s` apart; `on_committed` gets what each transaction
        did, before the callers do.
        """
        self._store = store
        self._window_s = window_s
        self._on_committed = on_committed
        self._queue: asyncio.Queue[_QueuedCommands] = asyncio.Queue()
        self._stopped = False

    async def enter(self, entry: Entry) -> Change:
        """Write a grant. Raises: as `AllocationStore.enter`."""
        answer = await self.submit(entry)
        if isinstance(answer, HamiError):
            raise answer
        assert answer is not None
        return answer

    async def advance(self, step: StateStep) -> Change | None:
        """Apply a step; return None if it is not due. Raises: as `AllocationStore.advance`."""
        answer = await self.submit(step)
        if isinstance(answer, HamiError):
            raise answer
        return answer

    def submit(self, command: Command) -> asyncio.Future[Answer]:
        """Queue a command without waiting; commands are applied in this order."""
        [answer] = self.submit_together([command])
        return answer

    def submit_together(self, commands: Sequence[Command]) -> Sequence[asyncio.Future[Answer]]:
        """Queue commands for one transaction, without waiting."""
        queued = _QueuedCommands(commands)
        if self._stopped:
            self._answer([queued], [_stopped_error()] * len(commands))
        else:
            self._queue.put_nowait(queued)
        return queued.answers

    async def run(self) -> None:
        """Commit until cancelled."""
        batch: list[_QueuedCommands] = []
        try:
            while True:
                batch = [await self._queue.get()]
                began = time.monotonic()
                self._take_waiting(batch, MAX_BATCH)
                await self._commit(batch)
                batch = []
                await asyncio.sleep(max(0.0, self._window_s - (time.monotonic() - began)))
        finally:
            self._stopped = True
            self._take_waiting(batch, len(batch) + self._queue.qsize())
            self._answer(batch, [_stopped_error()] * sum(len(each.commands) for each in batch))

    def _take_waiting(self, batch: list[_QueuedCommands], limit: int) -> None:
        while len(batch) < limit and not self._queue.empty():
            batch.append(self._queue.get_nowait())

    async def _commit(self, batch: Sequence[_QueuedCommands]) -> None:
        commands = [command for each in batch for command in each.commands]
        answers: Sequence[Answer]
        try:
            answers = await self._store.commit(commands)
        except Exception as exc:  # noqa: BLE001 - the callers get it
            if len(batch) > 1 and not isinstance(exc, Unavailable):
                extra = {"count": len(batch), "error": str(exc)}
                logger.info(
                    "Failed to commit a batch, committing each command separately", extra=extra
                )
                for each in batch:
                    await self._commit([each])
                return
            answers = [_in_tree(exc)] * len(commands)
        self._on_committed(list(zip(commands, answers, strict=True)))
        self._answer(batch, answers)

    def _answer(self, batch: Sequence[_QueuedCommands], answers: Sequence[Answer]) -> None:
        futures = [future for each in batch for future in each.answers]
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():  # otherwise its caller is gone
                future.set_result(answer)


def _stopped_error() -> HamiError:
    return Unavailable("the scheduler is shutting down; the pod will be retried")


def _in_tree(error: Exception) -> HamiError:
    """Return the error for callers; one that is not a HamiError becomes one."""
    if isinstance(error, HamiError):
        return error
    logger.error("Failed to write to the ledger", exc_info=error)
    return Unavailable(f"the ledger can't store what this pod needs: {error}")
