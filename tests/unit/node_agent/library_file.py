"""The least of a shared library: what the dynamic linker reads of its needs, and nothing else."""

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from hami_node_agent.cleanup.library_needs import machine_of

HERE = machine_of(Path(sys.executable).read_bytes()[:64])
UNMARKED, MARKED = (b"libvgpu limits file: %s\0" % each for each in (b"optional", b"required"))


def a_library(
    *,
    machine: int = HERE,
    name: str = "libvgpu.so",
    libraries: Sequence[str] = ("libc.so.6",),
    versions: Sequence[str] = ("GLIBC_2.2.5", "GLIBC_2.17"),
    kind: int = 3,
    behind: bytes = b"",
    mark: bytes = UNMARKED,
) -> bytes:
    """One mapped part that holds the whole file, `behind` after it."""
    strings, at = bytearray(b"\0"), {}
    for text in (name, *libraries, *versions):
        at[text] = len(strings)
        strings += text.encode() + b"\0"
    strings += mark
    entries = [(14, at[name])] if name else []
    entries += [(1, at[each]) for each in libraries]
    start = 64 + 2 * 56
    dynamic_size = 16 * (len(entries) + 4)
    needs_at = start + dynamic_size
    needs = struct.pack("<HHIII", 1, len(versions), at[libraries[0]] if libraries else 0, 16, 0)
    for index, version in enumerate(versions):
        following = 16 if index + 1 < len(versions) else 0
        needs += struct.pack("<IHHII", 0, 0, 2 + index, at[version], following)
    strings_at = needs_at + len(needs)
    entries += [(5, strings_at), (0x6FFFFFFE, needs_at), (0x6FFFFFFF, 1), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = strings_at + len(strings)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    found = struct.pack("<IIQQQQQQ", 2, 4, start, start, start, dynamic_size, dynamic_size, 8)
    return header + load + found + dynamic + needs + bytes(strings) + behind
