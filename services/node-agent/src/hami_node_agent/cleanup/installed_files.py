"""Keep library, preload list and limits files as they should be, and remove old libraries.

The library is marked before it is installed. A file that another program emptied, replaced or
removed is written again: without the library or the preload list the containers that start next
would run without limits, and libvgpu reads the limits files of running containers repeatedly.
Libraries of earlier versions are removed when no container can mount them any more (HAMi#727).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_node_agent.grants.records import Record
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

RESTORE_INTERVAL_S = 5.0
# A record's writer writes its file next; a longer difference is not from the agent.
CONFIRM_S = 1.0
OLD_LIBRARIES_INTERVAL_S = 300.0

# `native/libvgpu/src/config/installed.c` reads the mark in the library's own file, which containers
# mount read-only. A marked library that finds no limits file allows no card: in a container of ours
# the file was hidden from it. Without the mark it uses HAMi's variables then, for users who run it
# alone or in place of HAMi's library.
_UNMARKED = b"libvgpu limits file: optional\0"
_MARKED = b"libvgpu limits file: required\0"


def mark_library(content: bytes) -> bytes:
    """Return the library's bytes with our mark, unless they have it.

    Raises: InvalidRequest when it is no build of libvgpu that looks for the mark.
    """
    if content.count(_MARKED) == 1 and _UNMARKED not in content:
        return content
    if content.count(_UNMARKED) != 1:
        raise InvalidRequest(
            "without a limits file it would limit nothing, and it has no place for the agent's "
            "mark against that; build it with `make -C native`"
        )
    return content.replace(_UNMARKED, _MARKED)


def require_same_machine(library: bytes, program: bytes) -> None:
    """Check that the library is for this machine, by the ELF header of a program on the node.

    The dynamic linker leaves a preloaded library for another processor out without ending the
    program, which then has no limits. Symbol versions are checked when libvgpu is built
    (`native/libvgpu/check-needs`). Raises: InvalidRequest.
    """
    # e_ident up to the byte order, and e_machine.
    if (library[:6], library[18:20]) != (program[:6], program[18:20]):
        raise InvalidRequest("containers can't load it: it is not a library for this processor")


class InstalledFiles(Protocol):
    """Files on the host (blocking; each call may run twice)."""

    def restore_installed(self) -> Mapping[Path, str]:
        """Rewrite library and preload list if they differ; return path -> difference.

        Raises: Unavailable, with the path.
        """

    def wrong_limits(self, records: Iterable[Record]) -> list[Record]:
        """Return the records whose limits file exists, or its folder, and differs."""

    def write_limits(self, record: Record) -> None:
        """Write the record's limits into the container's file. Raises: Unavailable."""

    def limits_dir(self, nonce: str) -> Path:
        """Return the folder that a container sees at /etc/hami."""

    def old_libraries(self) -> frozenset[Path]:
        """Return installed libraries of other versions."""

    def remove_library(self, path: Path) -> None:
        """Delete the library of an earlier version; failures are logged."""


@dataclass(eq=False)
class FileRestorer:
    """Compare files with their intended content, repeatedly."""

    files: InstalledFiles
    state: NodeState
    _: KW_ONLY
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    restored: Counter[str] = field(default_factory=Counter, init=False)
    """Number of rewrites by file name; the log has the paths."""
    problem: str = field(default="", init=False)
    """Reason why a file can't be rewritten, so that no pod is accepted; or empty."""

    async def run(self) -> None:
        """Run until cancelled."""
        await every(RESTORE_INTERVAL_S, self.once, name="files", bulkhead=self.bulkhead)

    async def once(self) -> None:
        """Compare the installed files once, and rewrite those that differ. Raises: Unavailable."""
        try:
            installed = await asyncio.to_thread(self.files.restore_installed)
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
        still_wrong = {record.nonce: record for record in await self._wrong()}
        for record in suspects:
            # One that was written since has another file to be.
            if still_wrong.get(record.nonce) is record:
                await asyncio.to_thread(self.files.write_limits, record)
                path = self.files.limits_dir(record.nonce) / "limits"
                self._note(path, f"it was not what {record.pod_uid}/{record.container} was granted")

    async def _wrong(self) -> list[Record]:
        records = list(self.state.saved.records.values())
        return await asyncio.to_thread(self.files.wrong_limits, records)

    def _note(self, path: Path, wrong: str) -> None:
        self.restored[path.name] += 1
        logger.error("Restored a changed file", extra={"path": str(path), "reason": wrong})


@dataclass(eq=False)
class OldLibraries:
    """Remove libraries that no container uses.

    The kubelet keeps an Allocate answer, and with it the library's path, for the pod's whole life:
    a container that restarts months later mounts the version of that day. A version goes only when
    two readings in a row do not name it: an answer just given is not in the checkpoint yet.

    `mounted_paths`: of answers in the kubelet's checkpoint; `described`: of CDI files (blocking).
    Both raise: Unavailable.
    """

    files: InstalledFiles
    mounted_paths: Callable[[], Awaitable[frozenset[str]]]
    _: KW_ONLY
    described: Callable[[], frozenset[str]] = frozenset
    _unnamed: frozenset[Path] = field(default_factory=frozenset, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        await every(OLD_LIBRARIES_INTERVAL_S, self.look, name="libraries")

    async def look(self) -> None:
        """Remove unused libraries once; none while the kubelet's checkpoint can't be read."""
        try:
            named = await self.mounted_paths() | await asyncio.to_thread(self.described)
        except Unavailable as exc:
            logger.debug("Failed to check old libraries", extra={"error": str(exc)})
            self._unnamed = frozenset()
            return
        old = await asyncio.to_thread(self.files.old_libraries)
        unnamed = frozenset(path for path in old if str(path) not in named)
        for path in sorted(unnamed & self._unnamed):
            await asyncio.to_thread(self.files.remove_library, path)
        self._unnamed = unnamed - self._unnamed
