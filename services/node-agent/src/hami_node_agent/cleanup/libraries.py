"""Removes libraries of earlier versions when no container can mount them any more (HAMi#727).

The kubelet keeps an Allocate answer, and with it the library's path, for the pod's whole life:
a container that restarts months later mounts the version of that day. In: the kubelet's checkpoint,
and the CDI files of late-bound containers. A version goes only when no entry of two readings in a
row names it: an answer just given is not in the checkpoint yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

logger = logging.getLogger(__name__)

INTERVAL_S = 300.0


class MountedPaths(Protocol):
    """The kubelet's checkpoint."""

    async def mounted_paths(self) -> frozenset[str]:
        """Host paths that answers mount. Raises: Unavailable."""


class Libraries(Protocol):
    """Installed libraries."""

    def old_libraries(self) -> frozenset[Path]:
        """Those of other versions than ours (blocking)."""

    def remove_library(self, path: Path) -> None:
        """Removes one (blocking); failures are logged."""


class OldLibraries:
    """Looks for libraries that nobody names."""

    def __init__(
        self,
        files: Libraries,
        checkpoint: MountedPaths,
        *,
        described: Callable[[], frozenset[str]] = frozenset,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`described`: paths that CDI files mount (blocking). Raises: Unavailable."""
        self._files = files
        self._checkpoint = checkpoint
        self._described = described
        self._interval_s = interval_s
        self._unnamed: frozenset[Path] = frozenset()

    async def run(self) -> None:
        """Looks until cancelled."""
        await every(self._interval_s, self.look, name="libraries")

    async def look(self) -> None:
        """One round; where the checkpoint can't be read nothing is removed."""
        try:
            named = await self._checkpoint.mounted_paths()
            named |= await asyncio.to_thread(self._described)
        except Unavailable as exc:
            logger.debug("old libraries not checked", extra={"error": str(exc)})
            self._unnamed = frozenset()
            return
        old = await asyncio.to_thread(self._files.old_libraries)
        unnamed = frozenset(path for path in old if str(path) not in named)
        for path in sorted(unnamed & self._unnamed):
            await asyncio.to_thread(self._files.remove_library, path)
        self._unnamed = unnamed - self._unnamed
