"""All shared regions of the node, by the name of their directory; what can't be read is counted.

In: `$HOOK_PATH/vgpu/containers/*/`. Out: `Regions.read()`, used by `monitor.py`, and the problems
that `metrics/health.py` shows. Whatever a tenant puts into its directory, the other regions are
read all the same; a problem is logged when it begins, not in every round.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.usage.regions.accounting import Region
from hami_node_agent.usage.regions.reader import (
    NotARegion,
    RegionReading,
    cut,
    read_region,
    write_feedback,
)

logger = logging.getLogger(__name__)

# A directory that changed this recently may change again within the same tick of its clock.
SETTLED_NS = 1_000_000_000
# A tenant may fill its directory; the region is among the first names or is not looked for.
MAX_NAMES = 256
OVERSIZED = "oversized"
# No modification time: the directory is looked into in the next round.
_UNSETTLED = -1


@dataclass(slots=True)
class _Directory:
    """What is known of one container's directory."""

    file: str = ""
    looked_at_ns: int = _UNSETTLED
    """Its modification time when `file` was looked for."""
    reading: RegionReading | None = None
    problem: str = ""
    """Why it could not be read in the last round: a failure's kind."""
    unwritten: str = ""
    """Why the last write failed: a failure's kind."""


class Regions:
    """The node's regions. Not for two threads at once."""

    def __init__(self, containers_dir: Path, *, bulkhead: Bulkhead | None = None) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._base = str(containers_dir)
        self._directories: dict[str, _Directory] = {}
        self._failures: dict[str, int] = {}

    @property
    def failures(self) -> Mapping[str, int]:
        """How often reading or writing failed since the start, by kind."""
        return dict(self._failures)

    @property
    def unreadable(self) -> int:
        """Directories whose region could not be read in the last round."""
        return sum(1 for directory in self._directories.values() if directory.problem)

    @property
    def problems(self) -> frozenset[str]:
        """Their names."""
        return frozenset(name for name, each in self._directories.items() if each.problem)

    def read(self, *, now_ns: int) -> dict[str, Region]:
        """The readable regions by directory name (blocking). `now_ns`: time of the file system."""
        found: dict[str, Region] = {}
        known, self._directories = self._directories, {}
        for name, modified_ns in self._names():
            directory = self._directories[name] = known.get(name) or _Directory()
            with self._bulkhead.item("regions", name):
                self._look(name, directory, modified_ns, now_ns)
                if directory.reading is not None:
                    found[name] = directory.reading.region
        return found

    def write(
        self, name: str, *, recent_kernel: int | None, utilization_switch: int | None
    ) -> None:
        """Writes the monitor's switches into a region that was read (blocking)."""
        directory = self._directories.get(name)
        if directory is None or not directory.file:
            return
        try:
            write_feedback(
                f"{self._base}/{name}/{directory.file}",
                recent_kernel=recent_kernel,
                utilization_switch=utilization_switch,
            )
            directory.unwritten = ""
        except FileNotFoundError:
            # The container is gone.
            return
        except (NotARegion, OSError) as exc:
            kind = f"write_{_kind(exc)}"
            self._failed(name, kind, exc, logged=directory.unwritten)
            directory.unwritten = kind

    def _names(self) -> Iterator[tuple[str, int]]:
        """Directories with the time of their last change; links are not followed."""
        try:
            with os.scandir(self._base) as entries:
                listed = list(entries)
        except FileNotFoundError:
            # A node on which no container ever was.
            return
        except OSError as exc:
            self._count("unlistable")
            logger.warning("directories not listed", extra={"path": self._base, "error": str(exc)})
            return
        for entry in listed:
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False).st_mtime_ns
            except OSError:
                # It went while we looked.
                continue

    def _look(self, name: str, directory: _Directory, modified_ns: int, now_ns: int) -> None:
        try:
            if directory.looked_at_ns != modified_ns:
                file = _region_file(f"{self._base}/{name}")
                if file != directory.file:
                    directory.file, directory.reading = file, None
                settled = now_ns - modified_ns > SETTLED_NS
                directory.looked_at_ns = modified_ns if settled else _UNSETTLED
            if directory.file:
                path = f"{self._base}/{name}/{directory.file}"
                directory.reading = read_region(path, directory.reading)
            directory.problem = ""
        except FileNotFoundError:
            # It went while we looked.
            directory.file, directory.reading, directory.looked_at_ns = "", None, _UNSETTLED
        except (NotARegion, OSError) as exc:
            kind = _kind(exc)
            self._failed(name, kind, exc, logged=directory.problem)
            directory.reading, directory.problem = None, kind
            if kind == OVERSIZED:
                self._cut(name, f"{self._base}/{name}/{directory.file}")

    def _cut(self, name: str, path: str) -> None:
        """Its container may make it longer again; each look takes it back."""
        try:
            cut(path)
        except (NotARegion, OSError) as exc:
            self._failed(name, f"cut_{_kind(exc)}", exc, logged="")

    def _failed(self, name: str, kind: str, exc: Exception, *, logged: str) -> None:
        self._count(kind)
        if kind != logged:
            logger.warning(
                "region not usable", extra={"directory": name, "kind": kind, "error": str(exc)}
            )

    def _count(self, kind: str) -> None:
        self._failures[kind] = self._failures.get(kind, 0) + 1


def _region_file(directory: str) -> str:
    """The first cache by name that is no library; the empty string while there is none."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, MAX_NAMES)]
    return min((n for n in names if n.endswith(".cache") and "libvgpu.so" not in n), default="")


def _kind(exc: NotARegion | OSError) -> str:
    if isinstance(exc, NotARegion):
        return exc.kind
    if exc.errno == errno.ENOSPC:
        return "disk_full"
    # O_NOFOLLOW on a link; O_NONBLOCK on a socket or a pipe without a peer; a directory.
    odd = (errno.ELOOP, errno.ENXIO, errno.EISDIR)
    return "odd_file" if exc.errno in odd else "unreadable"
