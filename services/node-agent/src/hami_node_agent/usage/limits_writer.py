"""What libvgpu reads about a running container, in files that its tenant can't write.

The region holds the same switches for HAMi's library and for monitors; ours believes only the
limits directory. In: what the feedback loop decided, and the processes that the monitor found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.grants.limits_file import CoreFeedback, HostPid
from hami_node_agent.usage.monitor import Container, Seen

logger = logging.getLogger(__name__)


class LimitsFiles(Protocol):
    """The files in limits directories (blocking; each call may run twice)."""

    def write_feedback(self, nonce: str, feedback: CoreFeedback) -> None:
        """Changes the feedback loop's lines of a limits file. Raises: Unavailable."""

    def write_pids(self, nonce: str, pids: Iterable[HostPid]) -> None:
        """Writes which host pids a container's processes have. Raises: Unavailable."""


class LimitsWriter:
    """Writes the files of all containers, those that changed."""

    def __init__(self, files: LimitsFiles, *, bulkhead: Bulkhead | None = None) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._files = files

    async def feedback(self, decided: Mapping[str, CoreFeedback]) -> None:
        """By nonce. What can't be written is logged and tried in the next round."""
        await asyncio.to_thread(self._write_feedback, decided)

    async def processes(self, seen: Iterable[Seen]) -> None:
        """The host pids of what was seen."""
        found = {nonce_of(one.container): one.host_pids for one in seen}
        await asyncio.to_thread(self._write_pids, found)

    def _write_feedback(self, decided: Mapping[str, CoreFeedback]) -> None:
        for nonce, feedback in decided.items():
            try:
                with self._bulkhead.item("feedback", nonce):
                    self._files.write_feedback(nonce, feedback)
            except Unavailable as exc:
                logger.warning("feedback not written", extra={"error": str(exc)})

    def _write_pids(self, found: Mapping[str, Iterable[HostPid]]) -> None:
        for nonce, pids in found.items():
            if not nonce:
                continue
            try:
                with self._bulkhead.item("pids", nonce):
                    self._files.write_pids(nonce, pids)
            except Unavailable as exc:
                logger.warning("host pids not written", extra={"error": str(exc)})


def nonce_of(container: Container) -> str:
    """Of its limits directory; empty for containers that have none of ours."""
    record = container.owner.record
    return "" if record is None or record.foreign else record.nonce
