"""Read and write shared regions, the files in which containers account for their cards.

Input: `$HOOK_PATH/vgpu/containers/<dir>/*.cache`. Output: `Regions.read()`, used by `monitor.py`,
and the problems that `metrics/health.py` shows. A directory belongs to its tenant, who may write
anything into it: links and special files are not opened, counts are clamped, an invalid file is not
a region, and the other regions are still read. A problem is logged when it begins, not in every
round.

Only the head, the tail and the used slots are read, a few kilobytes of two megabytes. They are read
instead of mapped: a process that touches a mapped page of a truncated file is killed (SIGBUS), and
the tenant owns the file.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.usage.regions import layout as layout
from hami_node_agent.usage.regions.accounting import Region, RegionCard, RegionHeld, RegionProcess

logger = logging.getLogger(__name__)

# Bytes of the uuid that are shown, as HAMi's monitor does: `GPU-` and 36 characters.
UUID_SHOWN = 40
# A slot that is being written is read again; after this many reads the last one is used.
MAX_READS = 3
# First read: the head and the first slots, which are all that most containers use.
_START = max(form.slots_at + 2 * form.slot_size for form in (layout.V0, layout.V1))
_COUNTERS = struct.Struct("<QQQQQ")
_UINT64S = struct.Struct(f"<{layout.MAX_DEVICES}Q")
_TAIL = struct.Struct("<iiii")
_PIDS = struct.Struct("<ii")
_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")


class NotARegion(Exception):
    """Error: the file is no region; `kind` is the reason."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Bank:
    """Limits of sixteen cards, and what the processes hold of them."""

    head: bytes
    slots: bytes


@dataclass(frozen=True, slots=True)
class RegionReading:
    """Region with a hash of its bytes; with the same hash, the region is unchanged.

    The interpreter keys the hash with its own secret, so no tenant can construct a collision.
    """

    mark: int
    region: Region


def read_region(path: Path | str, last: RegionReading | None = None) -> RegionReading | None:
    """Read a region; None if it is not initialised yet.

    `last` is returned again if nothing has changed. Raises: NotARegion, OSError.
    """
    with opened(path, os.O_RDONLY) as descriptor:
        # Of 200 containers every few seconds: each file costs as few system calls as can be.
        size = _size(descriptor)
        if size > layout.MAX_BYTES:
            raise NotARegion("oversized", f"{size} bytes")
        start = os.pread(descriptor, _START, 0)
        form = _form(start, size)
        if form is None:
            return None
        head = _whole(start[: form.slots_at], form.slots_at, 0)
        tail = _read(descriptor, form.tail_size, form.tail_at)
        count = max(0, min(_I32.unpack_from(tail)[0], layout.MAX_SLOTS))
        slots = _slots(descriptor, form, count, start)
        first_kernel = _first_kernel(descriptor, form)
        banks = [_Bank(head, slots), *_further_banks(descriptor, form, count, size)]
        mark = hash((tuple((bank.head, bank.slots) for bank in banks), tail, first_kernel))
        if last is not None and last.mark == mark:
            return last
        cards = tuple(card for at, bank in enumerate(banks) for card in _cards(bank.head, form, at))
        used = tuple(_processes(descriptor, banks, form, cards))
    _, switch, recent, priority = _TAIL.unpack_from(tail)
    kernel_at = form.last_kernel_at
    region = Region(
        cards=cards,
        processes=used,
        last_kernel_epoch_s=0 if kernel_at is None else _U64.unpack_from(tail, kernel_at)[0],
        first_kernel_epoch_ms=first_kernel,
        priority=priority,
        recent_kernel=recent,
        utilization_switch=switch,
    )
    return RegionReading(mark, region)


def write_feedback(
    path: Path | str, *, recent_kernel: int | None, utilization_switch: int | None
) -> None:
    """Write the switches that are not None. Raises: NotARegion, OSError.

    Each is one aligned write of four bytes into the page that the container has mapped.
    """
    with opened(path, os.O_RDWR) as descriptor:
        form = _form(os.pread(descriptor, 8, 0), _size(descriptor))
        if form is None:
            return
        for field, value in (
            (layout.TailV1.utilization_switch, utilization_switch),
            (layout.TailV1.recent_kernel, recent_kernel),
        ):
            if value is not None:
                os.pwrite(descriptor, _I32.pack(value), form.tail_at + field.offset)


def cut(path: Path | str) -> None:
    """Truncate a file to the maximum size of a region. Raises: NotARegion, OSError.

    The file is the one thing of the host that its container can write, and the disk is everybody's.
    """
    with opened(path, os.O_WRONLY) as descriptor:
        if _size(descriptor) > layout.MAX_BYTES:
            os.ftruncate(descriptor, layout.MAX_BYTES)


class opened:  # noqa: N801 - reads as a function; a generator costs more than the system calls
    """Context of an open file that is no link. Raises: OSError."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str, mode: int) -> None:
        self._descriptor = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_error: object) -> None:
        os.close(self._descriptor)


def _size(descriptor: int) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise NotARegion("odd_file", f"mode {found.st_mode:o}")
    return found.st_size


def _form(head: bytes, size: int) -> layout.RegionForm | None:
    """Return the layout by the region's first eight bytes and size; None: not initialised."""
    start = head[:8]
    # The library makes the file, sets its size and writes the magic last.
    if not any(start[:4]):
        return None
    if len(start) < 8 or int.from_bytes(start[:4], "little") != layout.MAGIC:
        raise NotARegion("not_a_region", f"it begins with {start.hex()}")
    if layout.SIZE_V0 <= size < layout.SIZE_V1:
        return layout.V0
    major = int.from_bytes(start[4:], "little")
    if major == 1 and size >= layout.SIZE_V1:
        return layout.V1
    raise NotARegion("unknown_layout", f"{size} bytes of major version {major}")


def _slots(descriptor: int, form: layout.RegionForm, count: int, start: bytes) -> bytes:
    """Return the slots in use; `start`: beginning of the file, as it was read."""
    end = form.slots_at + count * form.slot_size
    if end <= len(start):
        return start[form.slots_at : end]
    return _read(descriptor, count * form.slot_size, form.slots_at)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    return _whole(os.pread(descriptor, size, offset), size, offset)


def _whole(data: bytes, size: int, offset: int) -> bytes:
    if len(data) < size:
        raise NotARegion("truncated", f"it ends at {offset + len(data)}")
    return data


def _first_kernel(descriptor: int, form: layout.RegionForm) -> int:
    if form.first_kernel_at is None:
        return 0
    return int(_U64.unpack(_read(descriptor, _U64.size, form.first_kernel_at))[0])


def _further_banks(
    descriptor: int, form: layout.RegionForm, slot_count: int, size: int
) -> Iterator[_Bank]:
    """Return the further banks of containers with more than sixteen cards."""
    if form is not layout.V1:
        return
    for at in range(layout.BANK_BYTES, layout.BANKS * layout.BANK_BYTES, layout.BANK_BYTES):
        if size < at + layout.SIZE_V1:
            return
        head = _read(descriptor, form.slots_at, at)
        if not _U64.unpack_from(head, layout.HeadV1.device_count.offset)[0]:
            return
        slots = _read(descriptor, slot_count * form.slot_size, at + form.slots_at)
        yield _Bank(head, slots)


def _cards(head: bytes, form: layout.RegionForm, bank: int) -> Iterator[RegionCard]:
    limits = _UINT64S.unpack_from(head, form.limits_at)
    sm_limits = _UINT64S.unpack_from(head, form.sm_limits_at)
    for index in range(layout.MAX_DEVICES):
        at = form.uuids_at + index * layout.UUID_BYTES
        uuid = _uuid(head[at : at + UUID_SHOWN])
        if uuid:
            yield RegionCard(
                index=bank * layout.MAX_DEVICES + index,
                uuid=uuid,
                limit_bytes=limits[index],
                core_limit_percent=sm_limits[index],
            )


def _uuid(raw: bytes) -> str:
    try:
        text = raw.split(b"\0")[0].decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


def _processes(
    descriptor: int, banks: list[_Bank], form: layout.RegionForm, cards: tuple[RegionCard, ...]
) -> Iterator[RegionProcess]:
    slots = banks[0].slots
    for at in range(0, len(slots), form.slot_size):
        # Either marks the slot as free.
        if not (_I32.unpack_from(slots, at)[0] and _I32.unpack_from(slots, at + form.status_at)[0]):
            continue
        parts = [bank.slots[at : at + form.slot_size] for bank in banks]
        if form.sequence_at is not None and _U64.unpack_from(slots, at + form.sequence_at)[0]:
            parts[0] = _read_consistent(descriptor, parts[0], form, at)
        yield _process(parts, form, cards)


def _process(
    parts: list[bytes], form: layout.RegionForm, cards: tuple[RegionCard, ...]
) -> RegionProcess:
    """Return a process; `parts`: its slot in each bank."""
    slot = parts[0]
    pid, host_pid = _PIDS.unpack_from(slot)
    held = []
    for card in cards:
        bank, place = divmod(card.index, layout.MAX_DEVICES)
        memory_at = form.memory_at + place * form.memory_size
        context, module, buffer, _, total = _COUNTERS.unpack_from(parts[bank], memory_at)
        sm_at = form.utilization_at + place * form.utilization_size + form.sm_at
        held.append(
            RegionHeld(
                total_bytes=total,
                context_bytes=context,
                module_bytes=module,
                buffer_bytes=buffer,
                core_percent=_U64.unpack_from(parts[bank], sm_at)[0],
            )
        )
    ticks = 0 if form.started_at is None else _U64.unpack_from(slot, form.started_at)[0]
    return RegionProcess(pid=pid, host_pid=host_pid, started_ticks=ticks, held=tuple(held))


def _read_consistent(descriptor: int, slot: bytes, form: layout.RegionForm, at: int) -> bytes:
    """Read a slot again until its sequence is even and unchanged, so that no write is half done."""
    assert form.sequence_at is not None
    before = _U64.unpack_from(slot, form.sequence_at)[0]
    for _ in range(MAX_READS - 1):
        slot = _read(descriptor, form.slot_size, form.slots_at + at)
        after = _U64.unpack_from(slot, form.sequence_at)[0]
        if before == after and after % 2 == 0:
            break
        before = after
    return slot


# A directory that changed this recently may change again within the same tick of its clock.
SETTLED_NS = 1_000_000_000
# A tenant may fill its directory; the region is among the first names or is not looked for.
MAX_NAMES = 256
OVERSIZED = "oversized"
# No modification time: the directory is looked into in the next round.
_UNSETTLED = -1


@dataclass(slots=True)
class _Directory:
    """State of one container's folder."""

    file: str = ""
    looked_at_ns: int = _UNSETTLED
    """Modification time of the folder when `file` was searched."""
    reading: RegionReading | None = None
    problem: str = ""
    """Reason why it could not be read in the last round: the kind of failure."""
    unwritten: str = ""
    """Reason why the last write failed: the kind of failure."""


class Regions:
    """Regions of the node; not thread safe."""

    def __init__(self, containers_dir: Path, *, bulkhead: Bulkhead | None = None) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._base = str(containers_dir)
        self._directories: dict[str, _Directory] = {}
        self.failures: Counter[str] = Counter()
        """How often reading or writing failed since the start, by kind."""

    @property
    def problems(self) -> frozenset[str]:
        """Return the folders whose region could not be read in the last round."""
        return frozenset(name for name, each in self._directories.items() if each.problem)

    def read(self, *, now_ns: int) -> dict[str, Region]:
        """Return the readable regions by folder (blocking); `now_ns`: time of the file system."""
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
        """Write the feedback loop's switches into a region that was read (blocking)."""
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
            self._on_failure(name, kind, exc, logged=directory.unwritten)
            directory.unwritten = kind

    def _names(self) -> Iterator[tuple[str, int]]:
        """Return the folders with the time of their last change; links are not followed."""
        try:
            with os.scandir(self._base) as entries:
                listed = list(entries)
        except FileNotFoundError:
            # A node on which no container ever was.
            return
        except OSError as exc:
            self.failures["unlistable"] += 1
            logger.warning(
                "Failed to list directories", extra={"path": self._base, "error": str(exc)}
            )
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
            self._on_failure(name, kind, exc, logged=directory.problem)
            directory.reading, directory.problem = None, kind
            if kind == OVERSIZED:
                self._cut(name, f"{self._base}/{name}/{directory.file}")

    def _cut(self, name: str, path: str) -> None:
        """Truncate a region to its size; its container may make it longer again."""
        try:
            cut(path)
        except (NotARegion, OSError) as exc:
            self._on_failure(name, f"cut_{_kind(exc)}", exc, logged="")

    def _on_failure(self, name: str, kind: str, exc: Exception, *, logged: str) -> None:
        self.failures[kind] += 1
        if kind != logged:
            logger.warning(
                "Ignoring an unusable region",
                extra={"directory": name, "kind": kind, "error": str(exc)},
            )


def _region_file(directory: str) -> str:
    """Return the first file by name that is a region; empty while there is none."""
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
