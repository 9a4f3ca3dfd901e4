"""Keeps the MPS control daemon running, in operating mode `mps`.

One that answers already is taken as it is (a service of the node's, or our own from before a
restart); else it is started, and started again when it dies. It is left running when we end, as
pods are: their processes are its clients.
"""

from __future__ import annotations

import logging
from typing import Protocol

from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

logger = logging.getLogger(__name__)

LOOK_S = 2.0


class Daemon(Protocol):
    """The control daemon."""

    async def answers(self) -> bool:
        """Whether it runs. Raises: Unavailable when that can't be asked."""

    async def start(self) -> None:
        """Starts it. Raises: Unavailable."""


class Mps:
    """The daemon's watch."""

    def __init__(self, daemon: Daemon, *, look_s: float = LOOK_S) -> None:
        self._daemon = daemon
        self._look_s = look_s
        self.problem = "the MPS control daemon has not been asked yet"
        """Why no pod should come here; empty while the daemon answers."""

    async def run(self) -> None:
        """Looks until cancelled."""
        await every(self._look_s, self.look, name="MPS")

    async def look(self) -> None:
        """One round: asks, and starts what does not answer."""
        before = self.problem
        try:
            if not await self._daemon.answers():
                logger.warning("the MPS control daemon does not answer, starting it")
                await self._daemon.start()
                if not await self._daemon.answers():
                    raise Unavailable("it was started and does not answer")
        except Unavailable as exc:
            self.problem = f"the MPS control daemon is away: {exc}"
        else:
            self.problem = ""
        if self.problem != before:
            logger.info("MPS control daemon changed state", extra={"problem": self.problem})
