"""What a shared library needs of the containers that load it, read from its ELF file.

In: the file's bytes. Out: the libraries and symbol versions that it needs, and whether containers
can load it. A library of /etc/ld.so.preload that needs a symbol version which a container's glibc
lacks ends every program there (ld.so(8) ignores missing files, not missing versions), so a
library is looked at before it is installed. The layout is that of the System V ABI (gABI 4.1) and
of the LSB's symbol versions (.gnu.version_r).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

OLDEST_GLIBC = (2, 17)
"""The C library of the oldest containers: RHEL 7, manylinux2014. native/libvgpu builds for it."""

_IN_EVERY_CONTAINER = frozenset({"libc.so.6"})
_SONAME = "libvgpu.so"
_MACHINES = {21: "ppc64le", 62: "x86-64", 183: "aarch64", 243: "riscv64"}
_ET_DYN, _PT_LOAD, _PT_DYNAMIC = 3, 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_ENTRY, _NEED, _VERSION = struct.Struct("<qQ"), struct.Struct("<HHIII"), struct.Struct("<IHHII")


class DamagedLibrary(ValueError):
    """The bytes are no whole ELF shared library of 64 bits; the text names what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryNeeds:
    """What the dynamic linker must find for it."""

    name: str
    """DT_SONAME; empty: it has none."""
    machine: int
    """e_machine of the processor that it is for."""
    libraries: tuple[str, ...]
    versions: frozenset[str]
    """Such as GLIBC_2.17."""


def machine_of(content: bytes) -> int:
    """e_machine of any ELF file; its first 64 bytes are enough. Raises: DamagedLibrary."""
    try:
        return int(_header(content)[2])
    except struct.error as exc:
        raise DamagedLibrary("it is no ELF file") from exc


def needs_of(content: bytes) -> LibraryNeeds:
    """Raises: DamagedLibrary."""
    try:
        return _needs_of(content)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as exc:
        raise DamagedLibrary("it is cut short or damaged") from exc


def glibc_version(version: str) -> tuple[int, ...]:
    """`GLIBC_2.17` as (2, 17); what is no plain version of glibc is newer than all."""
    found = re.fullmatch(r"GLIBC_(\d{1,4}(?:\.\d{1,4})*)", version)
    return tuple(map(int, found.group(1).split("."))) if found else (10_000,)


def why_not_loadable(content: bytes, *, machine: int) -> str:
    """What keeps containers of a node with this e_machine from loading it; empty: nothing."""
    try:
        needs = needs_of(content)
    except DamagedLibrary as exc:
        return str(exc)
    if needs.machine != machine:
        return f"it is for {_machine(needs.machine)}, this node is {_machine(machine)}"
    if needs.name != _SONAME:
        return f"its name is {needs.name or 'not given'}, not {_SONAME}"
    foreign = [each for each in needs.libraries if each not in _IN_EVERY_CONTAINER]
    if foreign or not needs.libraries:
        wanted = ", ".join(foreign) or "no C library"
        return f"it needs {wanted}; only libc.so.6, glibc's, is in every container"
    above = [each for each in needs.versions if glibc_version(each) > OLDEST_GLIBC]
    if above:
        bound = ".".join(map(str, OLDEST_GLIBC))
        return (
            f"it needs {max(above, key=glibc_version)}, above GLIBC_{bound}: programs in containers"
            " with an older C library would not start; build it with `make -C native`"
        )
    return ""


def _machine(number: int) -> str:
    return _MACHINES.get(number, f"machine {number}")


def _header(content: bytes) -> tuple[bytes, int, int, int, int, int]:
    """(e_ident, e_type, e_machine, e_phoff, e_phentsize, e_phnum)"""
    ident, kind, machine, _, _, at, _, _, _, size, count, *_ = _HEADER.unpack_from(content)
    if ident[:4] != b"\x7fELF":
        raise DamagedLibrary("it is no ELF file")
    if ident[4:6] != b"\x02\x01":
        raise DamagedLibrary("it is no little-endian ELF file of 64 bits")
    return ident, kind, machine, at, size, count


@dataclass(frozen=True, slots=True)
class _Image:
    """The file as it is mapped."""

    content: bytes
    loads: tuple[tuple[int, int, int], ...]
    """(address, offset, size) of each mapped part."""

    def offset(self, address: int) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return offset + address - start
        raise DamagedLibrary("it is damaged: an address of it is not in the file")

    def text(self, address: int) -> str:
        at = self.offset(address)
        end = self.content.find(b"\0", at)
        if end < 0:
            raise DamagedLibrary("it is damaged: a name of it does not end")
        return self.content[at:end].decode("ascii")


def _needs_of(content: bytes) -> LibraryNeeds:
    if len(content) < _HEADER.size:
        raise DamagedLibrary("it is no ELF file")
    _, kind, machine, at, size, count = _header(content)
    if kind != _ET_DYN or size != _SEGMENT.size:
        raise DamagedLibrary("it is no shared library")
    segments = [_SEGMENT.unpack_from(content, at + i * size) for i in range(count)]
    loads = [(each[3], each[2], each[5]) for each in segments if each[0] == _PT_LOAD]
    if any(offset + length > len(content) for _, offset, length in loads):
        raise DamagedLibrary("it is cut short")
    image = _Image(content, tuple(loads))
    dynamic = [each for each in segments if each[0] == _PT_DYNAMIC]
    if len(dynamic) != 1:
        raise DamagedLibrary("it is no shared library")
    entries = list(_entries(content, offset=dynamic[0][2], size=dynamic[0][5]))
    one = dict(entries)
    strings = one.get(_DT_STRTAB, 0)
    return LibraryNeeds(
        name=image.text(strings + one[_DT_SONAME]) if _DT_SONAME in one else "",
        machine=machine,
        libraries=tuple(image.text(strings + value) for tag, value in entries if tag == _DT_NEEDED),
        versions=frozenset(
            _versions(image, strings, one[_DT_VERNEED], one.get(_DT_VERNEEDNUM, 0))
            if _DT_VERNEED in one
            else ()
        ),
    )


def _entries(content: bytes, *, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for at in range(offset, offset + size, _ENTRY.size):
        tag, value = _ENTRY.unpack_from(content, at)
        if tag == _DT_NULL:
            return
        yield tag, value
    raise DamagedLibrary("it is damaged: its dynamic section does not end")


def _versions(image: _Image, strings: int, address: int, count: int) -> Iterator[str]:
    at = image.offset(address)
    # A version is 16 bytes, so a file can't have more; a damaged count must not keep us.
    left = len(image.content) // _VERSION.size
    for _ in range(min(count, left)):
        _, versions, _, first, next_need = _NEED.unpack_from(image.content, at)
        version_at = at + first
        for _ in range(versions):
            left -= 1
            if left < 0:
                raise DamagedLibrary("it is damaged: its symbol versions do not end")
            *_, name, next_version = _VERSION.unpack_from(image.content, version_at)
            yield image.text(strings + name)
            version_at += next_version
        at += next_need
