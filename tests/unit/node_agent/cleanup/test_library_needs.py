from contextlib import suppress

import pytest
from hami_node_agent.cleanup.library_needs import (
    DamagedLibrary,
    LibraryNeeds,
    glibc_version,
    machine_of,
    needs_of,
    why_not_loadable,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_agent.library_file import HERE, a_library

X86_64, AARCH64 = 62, 183
LIBRARY = a_library()


def test_needs_are_read_from_the_file() -> None:
    library = a_library(machine=AARCH64, libraries=["libc.so.6", "libdl.so.2"])

    assert needs_of(library) == LibraryNeeds(
        name="libvgpu.so",
        machine=AARCH64,
        libraries=("libc.so.6", "libdl.so.2"),
        versions=frozenset({"GLIBC_2.2.5", "GLIBC_2.17"}),
    )


def test_a_library_for_every_container_is_accepted() -> None:
    assert why_not_loadable(LIBRARY, machine=HERE) == ""


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (a_library(versions=["GLIBC_2.17", "GLIBC_2.34"]), "needs GLIBC_2.34, above GLIBC_2.17"),
        (a_library(versions=["GLIBC_2.9", "GLIBC_2.18"]), "needs GLIBC_2.18, above GLIBC_2.17"),
        (a_library(versions=["GLIBC_2.17", "GLIBC_ABI_DT_RELR"]), "needs GLIBC_ABI_DT_RELR"),
        (a_library(versions=["GLIBC_PRIVATE"]), "needs GLIBC_PRIVATE"),
        (a_library(libraries=["libc.so.6", "libcuda.so.1"]), "needs libcuda.so.1; only libc.so.6"),
        (a_library(libraries=["libc.musl-x86_64.so.1"]), "needs libc.musl-x86_64.so.1; only"),
        (a_library(libraries=[]), "needs no C library"),
        (a_library(name="libcuda.so.1"), "its name is libcuda.so.1, not libvgpu.so"),
        (a_library(name=""), "its name is not given, not libvgpu.so"),
        (a_library(kind=2), "it is no shared library"),
        (b"", "it is no ELF file"),
        (b"#!/bin/sh\n" * 100, "it is no ELF file"),
        (LIBRARY[:-1], "it is cut short"),
        (LIBRARY[:100], "it is cut short"),
        (LIBRARY[:4] + b"\x01" + LIBRARY[5:], "no little-endian ELF file of 64 bits"),
    ],
)
def test_a_library_that_containers_cannot_load_is_refused(library: bytes, reason: str) -> None:
    assert reason in why_not_loadable(library, machine=HERE)


def test_a_library_for_another_processor_is_refused() -> None:
    reason = why_not_loadable(a_library(machine=AARCH64), machine=X86_64)
    assert reason == "it is for aarch64, this node is x86-64"
    reason = why_not_loadable(a_library(machine=8), machine=AARCH64)
    assert reason == "it is for machine 8, this node is aarch64"


def test_versions_compare_by_number() -> None:
    assert glibc_version("GLIBC_2.9") < glibc_version("GLIBC_2.17") < glibc_version("GLIBC_2.17.1")
    assert glibc_version("GLIBCXX_3.4") > glibc_version("GLIBC_99.9")


@given(st.dictionaries(st.integers(0, len(LIBRARY) - 1), st.integers(0, 255), max_size=8))
def test_a_damaged_file_is_read_or_refused(changes: dict[int, int]) -> None:
    damaged = bytearray(LIBRARY)
    for at, byte in changes.items():
        damaged[at] = byte

    # Nothing but its own error, and no endless list.
    with suppress(DamagedLibrary):
        assert len(needs_of(bytes(damaged)).versions) <= len(LIBRARY)
    why_not_loadable(bytes(damaged), machine=HERE)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_reason(content: bytes) -> None:
    assert why_not_loadable(content, machine=HERE)
    assert why_not_loadable(b"\x7fELF\x02\x01" + content, machine=HERE)


def test_the_machine_of_what_is_no_elf_file_is_not_guessed() -> None:
    with pytest.raises(DamagedLibrary):
        machine_of(b"MZ" * 40)
    with pytest.raises(DamagedLibrary):
        machine_of(b"\x7fELF")
