"""The least of a shared library: the header of an ELF file for this machine, and the mark."""

import sys
from pathlib import Path

UNMARKED, MARKED = (b"libvgpu limits file: %s\0" % each for each in (b"optional", b"required"))
HEADER = Path(sys.executable).read_bytes()[:64]


def a_library(*, header: bytes = HEADER, mark: bytes = UNMARKED, behind: bytes = b"") -> bytes:
    """A library's bytes; `behind` makes builds differ."""
    return header + mark + behind
