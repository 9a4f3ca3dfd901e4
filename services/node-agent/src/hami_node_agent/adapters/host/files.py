"""Files that containers see: library, preload list, limits and cache folders.

    <hook_path>/vgpu/libvgpu.so.<version>                 ro in containers as .../libvgpu.so
    <hook_path>/vgpu/ld.so.preload                        ro as /etc/ld.so.preload
    <hook_path>/vgpu/containers/<podUID>_<container>/     ro, holds the shared region
        <nonce>.cache                                     rw, a separate mount
        libvgpu.so                                        empty: the library is mounted on it
    <state_dir>/limits/<nonce>/limits                     ro as /etc/hami/limits
    <state_dir>/limits/<nonce>/pids                       ro as /etc/hami/pids

All calls block; callers use a thread. Every call may run twice. Limits are written again from the
record before every start of a container, so no caller waits until the disk has them.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest, Unavailable

from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.host.durable import age_s, make_empty, replace_file
from hami_node_agent.adapters.host.removal import REMOVING, Removal
from hami_node_agent.allocation.response import region_name, region_path
from hami_node_agent.cleanup.installed_files import mark_library, require_same_machine
from hami_node_agent.grants.limits_file import (
    CoreFeedback,
    HostPid,
    limits_text,
    pids_text,
    with_feedback,
)
from hami_node_agent.grants.records import Record

logger = logging.getLogger(__name__)

LIMITS_FILE = "limits"
PIDS_FILE = "pids"
LIBRARY_PLACE = "libvgpu.so"
"""Name of the library in a container's limits folder, which the runtime can't create there."""
# HAMi's own, which may lie beside ours, have a v before the number.
_OUR_LIBRARY = re.compile(r"libvgpu\.so\.\d[\w.+-]*")


class HostFiles:
    """Folders of one node for limits, caches and the library."""

    def __init__(
        self,
        *,
        base: Path,
        state_dir: Path,
        oversubscribe: bool,
        container_base: PurePosixPath,
        cdi: CdiFiles | None = None,
    ) -> None:
        """Create the instance.

        `container_base` is where containers see their cache directory, `cdi` are files of
        late-bound containers, which go with their pods' directories.
        """
        self.base = base
        self._cdi = cdi
        self._limits = state_dir / "limits"
        self._containers = base / "containers"
        self._removals = {parent: Removal(parent) for parent in (self._limits, self._containers)}
        self._oversubscribe = oversubscribe
        self._container_base = container_base
        self._library = Path()
        self._installed: dict[Path, _InstalledFile] = {}
        self._restored: dict[Path, str] = {}
        """Faults of files that were written again, until they are asked for."""
        # Limits are written by Allocate, PreStartContainer and the feedback loop, each in a thread.
        self._writing = threading.Lock()
        self._feedback: dict[str, CoreFeedback] = {}
        self._pids: dict[str, str] = {}

    def install(self, library: Path, *, version: str, preload_path: str) -> Path:
        """Install the library, marked as the agent's, and the preload list.

        Returns the library's host path.

        A mapped library is never written to: a new one replaces the name only (HAMi#727).
        Raises: InvalidRequest when `library` can't be read or containers couldn't load it,
        Unavailable when the host can't be written.
        """
        try:
            content = library.read_bytes()
        except OSError as exc:
            raise InvalidRequest(f"library_path {library}: expected libvgpu.so: {exc}") from exc
        try:
            with Path(sys.executable).open("rb") as program:
                require_same_machine(content, program.read(64))
            content = mark_library(content)
        except InvalidRequest as exc:
            raise InvalidRequest(f"library_path {library}: {exc}") from exc
        target = self.base / f"libvgpu.so.{version}"
        try:
            for directory in (self._containers, self._limits):
                directory.mkdir(parents=True, exist_ok=True)
            self._install(target, content, mode=0o755)
            self._install(self.base / "ld.so.preload", f"{preload_path}\n".encode())
        except OSError as exc:
            raise Unavailable(f"{self.base} can't be prepared: {exc}") from exc
        self._library = target
        return target

    def _install(self, path: Path, content: bytes, *, mode: int = 0o644) -> None:
        _update(path, content, mode=mode, durable=True)
        self._installed[path] = _InstalledFile(content, mode, _stamp(path))

    def restore_installed(self) -> dict[Path, str]:
        """Rewrite library and preload list if they differ; return path -> difference.

        Containers that start later see the new file. Files that were rewritten before a start are
        returned as well. Raises: Unavailable, with the path.
        """
        self._restore_installed()
        restored, self._restored = self._restored, {}
        return restored

    def _restore_installed(self) -> None:
        for path, known in list(self._installed.items()):
            try:
                if _stamp(path) == known.stamp:
                    continue
                wrong = _difference(path, known.content)
                self._install(path, known.content, mode=known.mode)
            except OSError as exc:
                raise Unavailable(f"{path} can't be written again: {exc}") from exc
            if wrong:
                self._restored[path] = wrong

    def wrong_limits(self, records: Iterable[Record]) -> list[Record]:
        """Return the records whose limits file differs; one without a folder has no such file."""
        found = []
        for record in records:
            if record.foreign or not record.nonce:
                continue
            directory = self.limits_dir(record.nonce)
            with self._writing:
                wanted = self._limits_of(record)
                try:
                    text = (directory / LIMITS_FILE).read_text(errors="replace")
                    if record.nonce not in self._feedback:
                        # What an agent before this one decided holds until the next decision.
                        text = with_feedback(text, CoreFeedback())
                    differs = text.encode() != wanted
                except OSError:
                    differs = directory.is_dir()
            if differs:
                found.append(record)
        return found

    def _limits_of(self, record: Record) -> bytes:
        return limits_text(
            record.shares,
            policy=record.policy,
            oversubscribe=self._oversubscribe,
            region=region_path(self._container_base, record.nonce),
            feedback=self._feedback.get(record.nonce, CoreFeedback()),
        ).encode()

    def old_libraries(self) -> frozenset[Path]:
        """Return the libraries that earlier versions of this agent installed."""
        found = self.base.iterdir() if self.base.is_dir() else iter(())
        return frozenset(
            path for path in found if _OUR_LIBRARY.fullmatch(path.name) and path != self._library
        )

    def remove_library(self, path: Path) -> None:
        """Delete the library of an earlier version; failures are logged."""
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            logger.warning(
                "Failed to remove the library of an earlier version",
                extra={"path": str(path), "error": str(exc)},
            )
        else:
            logger.info("Removed the library of an earlier version", extra={"path": str(path)})

    def limits_dir(self, nonce: str) -> Path:
        """Return the folder that a container sees at /etc/hami."""
        return self._limits / nonce

    def write_limits(self, record: Record) -> None:
        """Write the record's limits into the container's file. Raises: Unavailable.

        Nothing for an answer of HAMi's: no container sees a limits directory there.
        """
        if record.foreign:
            return
        # The container is about to start: without them nothing would limit it.
        self._restore_installed()
        directory = self.limits_dir(record.nonce)
        with self._writing:
            text = self._limits_of(record)
            try:
                directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                _update(directory / LIMITS_FILE, text)
            except OSError as exc:
                raise Unavailable(f"{directory} can't be written: {exc}") from exc

    def write_feedback(self, nonce: str, feedback: CoreFeedback) -> None:
        """Change only the lines of the limits file about waiting and relaxed limits.

        Does nothing where there is no such file. Raises: Unavailable.
        """
        if self._feedback.get(nonce) == feedback:
            return
        path = self.limits_dir(nonce) / LIMITS_FILE
        with self._writing:
            try:
                text = with_feedback(path.read_text(), feedback)
                _update(path, text.encode())
            except FileNotFoundError:
                return
            except OSError as exc:
                raise Unavailable(f"{path} can't be written: {exc}") from exc
            self._feedback[nonce] = feedback

    def write_pids(self, nonce: str, pids: Iterable[HostPid]) -> None:
        """Write the host pids of the container's processes. Raises: Unavailable."""
        text = pids_text(pids)
        directory = self.limits_dir(nonce)
        if self._pids.get(nonce, "") == text or not directory.is_dir():
            return
        try:
            _update(directory / PIDS_FILE, text.encode())
        except OSError as exc:
            raise Unavailable(f"{directory} can't be written: {exc}") from exc
        self._pids[nonce] = text

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """Create a container's folder with an empty region that its users may write.

        A directory of this name is replaced; its empty files are mount points for the runtime.
        Raises: Unavailable.
        """
        try:
            # Its content is removed when no caller waits.
            self._removals[self._containers].detach(name)
        except OSError as exc:
            directory = self._containers / name
            raise Unavailable(f"{directory} can't be emptied: {clip(str(exc))}") from exc
        self.keep_cache_dir(name, nonce)

    def keep_cache_dir(self, name: str, nonce: str) -> None:
        """Create missing files in a container's folder. Raises: Unavailable.

        A directory of an older answer belongs to its tenant: no link in it is followed.
        """
        directory = self._containers / name
        try:
            if not directory.is_dir():
                directory.mkdir(parents=True)
                directory.chmod(0o755)
            make_empty(directory / LIBRARY_PLACE, mode=0o644)
            make_empty(directory / region_name(nonce), mode=0o666)
        except OSError as exc:
            raise Unavailable(f"{directory} can't be made: {exc}") from exc

    def remove_pod(self, cache_dirs: Iterable[str], nonces: Iterable[str]) -> None:
        """Release the folders of a pod whose containers are gone, for removal.

        Never raises OSError.
        """
        gone = list(nonces)
        if self._cdi is not None:
            self._cdi.remove(gone)
        for nonce in gone:
            self._feedback.pop(nonce, None)
            self._pids.pop(nonce, None)
            self._removals[self._limits].give_up(nonce)
        for name in cache_dirs:
            # An empty name would be the parent of all.
            if name:
                self._removals[self._containers].give_up(name)

    def cdi_nonces(self) -> frozenset[str]:
        """Return the nonces that CDI files describe."""
        return frozenset() if self._cdi is None else self._cdi.nonces()

    def remove_strays(
        self, *, nonces: Container[str], cache_dirs: Container[str], older_than_s: float
    ) -> None:
        """Release unknown folders that have not changed recently, for removal.

        What a device description mounts is no stray, whatever else is known of it.
        Raises: Unavailable when the directories can't be listed.
        """
        mounted: frozenset[str] = frozenset()
        if self._cdi is not None:
            self._cdi.remove_strays(nonces=nonces, older_than_s=older_than_s)
            mounted = frozenset(PurePosixPath(path).name for path in self._cdi.mounted_paths())
        for parent, known in ((self._limits, nonces), (self._containers, cache_dirs)):
            try:
                names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
            except OSError as exc:
                raise Unavailable(f"{parent} can't be listed: {exc}") from exc
            for name in names:
                if name == REMOVING or name in known or name in mounted:
                    continue
                if age_s(parent / name) > older_than_s:
                    self._removals[parent].give_up(name)

    def remove_given_up(self, budget_s: float) -> bool:
        """Remove released folders for about `budget_s` seconds; return True if some are left."""
        share_s = budget_s / len(self._removals)
        # Each has its turn, whatever the one before answers.
        more = [removal.work(share_s) for removal in self._removals.values()]
        return any(more)

    @property
    def to_remove(self) -> int:
        """Return the number of released folders that are not removed yet."""
        return sum(removal.waiting for removal in self._removals.values())

    @property
    def removal_failures(self) -> Mapping[str, int]:
        """Number of failed removals since the start, by the system's error."""
        failures: Counter[str] = Counter()
        for removal in self._removals.values():
            failures.update(removal.failures)
        return failures


class _InstalledFile(NamedTuple):
    """File that the agent installed."""

    content: bytes
    mode: int
    stamp: tuple[int, ...]
    """Inode, size, times and mode, which differ if another process writes or replaces the file."""


def _stamp(path: Path) -> tuple[int, ...]:
    """Return the file's inode, size, times and mode; empty if there is no file. Raises: OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)


def _difference(path: Path, content: bytes) -> str:
    """Describe how a file differs from this content; empty if it does not. Raises: OSError."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return "it was missing"
    if found == content:
        return ""
    return "it was empty" if not found else f"it had other {len(found)} bytes"


def _update(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    if not path.is_file() or path.read_bytes() != content:
        replace_file(path, content, mode=mode, durable=durable)
