"""Files that containers see are compared with what they should be, and written again.

The library and the preload list: emptied, replaced or gone, the containers that start next would
run without limits. The limits files of containers that run: libvgpu reads them again and again, so
what somebody writes there holds at once. What can't be written again keeps pods off the node, and
is named by its path.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_node_agent.grants.records import Record
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 5.0
# Who writes a record writes its file next; what differs for longer was written by nobody of ours.
CONFIRM_S = 1.0


class RestorableFiles(Protocol):
    """The host's files (blocking; each call may run twice)."""

    def restore_installed(self) -> Mapping[Path, str]:
        """Writes library and preload list again where they are others: path -> what was wrong.

        Raises: Unavailable, with the path.
        """

    def wrong_limits(self, records: Iterable[Record]) -> list[Record]:
        """Records whose limits file is there, or its folder, and is another than they want."""

    def write_limits(self, record: Record) -> None:
        """Makes the container's limits those of the record. Raises: Unavailable."""

    def limits_dir(self, nonce: str) -> Path:
        """The directory that a container sees at /etc/hami."""


class FileRestorer:
    """Looks at the files, one time after another."""

    def __init__(
        self, files: RestorableFiles, state: NodeState, *, bulkhead: Bulkhead | None = None
    ) -> None:
        self._files = files
        self._state = state
        self._bulkhead = bulkhead or Bulkhead()
        self.restored: Counter[str] = Counter()
        """How often files of each name were written again; the log has their paths."""
        self.problem = ""
        """Why a file can't be written again; empty: all are as they should be."""

    async def run(self) -> None:
        """Runs until cancelled."""
        await every(LOOK_INTERVAL_S, self.once, name="files", bulkhead=self._bulkhead)

    async def once(self) -> None:
        """One look. Raises: Unavailable."""
        try:
            installed = await asyncio.to_thread(self._files.restore_installed)
            for path, wrong in installed.items():
                self._note(path, wrong)
            await self._restore_limits()
        except Unavailable as exc:
            self.problem = str(exc)
            raise
        self.problem = ""

    async def _restore_limits(self) -> None:
        suspects = await self._wrong()
        if not suspects:
            return
        await asyncio.sleep(CONFIRM_S)
        again = {record.nonce: record for record in await self._wrong()}
        for record in suspects:
            # One that was written since has another file to be.
            if again.get(record.nonce) is record:
                await asyncio.to_thread(self._files.write_limits, record)
                path = self._files.limits_dir(record.nonce) / "limits"
                self._note(path, f"it was not what {record.pod_uid}/{record.container} was granted")

    async def _wrong(self) -> list[Record]:
        records = list(self._state.saved.records.values())
        return await asyncio.to_thread(self._files.wrong_limits, records)

    def _note(self, path: Path, wrong: str) -> None:
        self.restored[path.name] += 1
        logger.error("file written again", extra={"path": str(path), "reason": wrong})
