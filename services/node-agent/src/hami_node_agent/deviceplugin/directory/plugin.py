"""The files of a directory as devices: a file that appears is one more, a deleted one is gone.

In: a directory such as `/etc/gophers`. Out: its resource at the kubelet, and variables with the
names of the files in the containers that got them. `__main__.py` serves it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hamicommon.process.periodic import every
from watchfiles import awatch

from hami_node_agent.deviceplugin.servicer import Advertised, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.state import Signal

logger = logging.getLogger(__name__)

# inotify reports at once; this covers file systems where it does not, and a directory that is away.
POLL_MS = 1000


class DirectoryPlugin(DevicePluginService):
    """One directory, one resource."""

    def __init__(self, directory: Path, *, envs: Mapping[str, str]) -> None:
        """`envs`: variables of a container; `{ids}` in a value is its files, joined by commas."""
        self.changed = Signal()
        super().__init__(self.changed)
        self._directory = directory
        self._envs = envs
        self._names: frozenset[str] = frozenset()
        self.look()

    def devices(self) -> Iterator[Advertised]:
        """The files, by name."""
        return (Advertised(device_id=name) for name in sorted(self._names))

    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """The variables, with the names put in."""
        return [
            ContainerSpec(
                envs={k: v.replace("{ids}", ",".join(sorted(ids))) for k, v in self._envs.items()},
                mounts=(),
            )
            for ids in requests
        ]

    def look(self) -> None:
        """Reads the directory (blocking); one that is away has no devices."""
        names = files_of(self._directory)
        if names != self._names:
            logger.info(
                "devices changed",
                extra={"new": sorted(names - self._names), "gone": sorted(self._names - names)},
            )
            self._names = names
            self.changed.notify()

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        await every(POLL_MS / 1000, self._until_away, name="device directory")

    async def _until_away(self) -> None:
        await asyncio.to_thread(self.look)
        if not self._directory.is_dir():
            return
        changes = awatch(
            self._directory,
            watch_filter=None,
            recursive=False,
            step=20,
            debounce=100,
            rust_timeout=POLL_MS,
            yield_on_timeout=True,
        )
        async for _ in changes:
            await asyncio.to_thread(self.look)
            if not self._directory.is_dir():
                return


def files_of(directory: Path) -> frozenset[str]:
    """Names of the files; directories and hidden files (an editor's, a ConfigMap's) are none."""
    try:
        return frozenset(
            path.name
            for path in directory.iterdir()
            if not path.name.startswith(".") and not path.is_dir()
        )
    except OSError:
        return frozenset()
