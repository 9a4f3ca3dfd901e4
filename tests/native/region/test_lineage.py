"""Children by vfork, posix_spawn and fork, and a program's successor by exec, share one slice."""

import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.native.driver_calls import DATA
from tests.native.machine import LIBVGPU, MIB, ROOT, Container
from tests.waiting import PATIENCE_S

PROGRAM = (DATA / "lineage.c").read_text()


def test_children_and_successors_count_for_themselves_alone(
    container: Container, compile_c: Callable[..., object]
) -> None:
    container.limit(10 * MIB)
    program = compile_c(PROGRAM, "-ldl", "-pthread")

    done = subprocess.run(
        [str(program), "parent"],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    seen_by_a_child = ["child 4", "child 0 2"]  # 4 MiB are left; 1 more is refused
    assert done.stdout.splitlines() == [
        *seen_by_a_child,
        "after vfork 4",  # the child's end gave all back
        *seen_by_a_child,
        "after spawn 4",
        "forked 40",
        "after fork 4",
        "image 10",  # the 6 MiB went with the program that exec replaced
        "image 0 2",
    ]
    assert done.stderr == ""


def output(*command: object) -> str:
    return subprocess.run(map(str, command), check=True, capture_output=True, text=True).stdout


def objects_of_the_library() -> list[range]:
    """Return the library's offsets of every object that is declared VGPU_WIPE_ON_FORK.

    The declarations are a section of pairs, address and size; the linker relocates the addresses.
    """
    sections = output("readelf", "-SW", LIBVGPU)
    found = re.search(r"vgpu_wiped +PROGBITS +(\w+) +(\w+) +(\w+)", sections)
    assert found, sections
    start, offset, size = (int(number, 16) for number in found.groups())
    relocations = output("readelf", "-rW", LIBVGPU)
    addresses = {
        int(at, 16): int(address, 16)
        for at, address in re.findall(r"^(\w+) +\w+ R_\w+_RELATIVE +(\w+)$", relocations, re.M)
    }
    content = LIBVGPU.read_bytes()[offset : offset + size]
    sizes = [length for _, length in struct.iter_unpack("<QQ", content)]
    return [
        range(addresses[start + 16 * i], addresses[start + 16 * i] + length)
        for i, length in enumerate(sizes)
    ]


def wiped_on_fork(pid: int) -> list[range]:
    """Return the ranges that the kernel empties in a child, from the library's start on."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    head = re.compile(r"^(\w+)-(\w+) \S{4} .*$", re.MULTILINE)
    areas = [(range(int(m[1], 16), int(m[2], 16)), m) for m in head.finditer(text)]
    base = min(area.start for area, m in areas if m[0].endswith(str(LIBVGPU)))
    flags = re.findall(r"^VmFlags: (.*)$", text, re.MULTILINE)
    return [
        range(area.start - base, area.stop - base)
        for (area, _), flag in zip(areas, flags, strict=True)
        if "wf" in flag.split() and area.start > base
    ]


def test_a_fork_child_finds_every_account_empty_and_a_program_without_gpu_pays_nothing(
    container: Container,
) -> None:
    container.limit(10 * MIB)
    client = container.start()
    objects = objects_of_the_library()
    declared = output("grep", "-rh", "^VGPU_WIPE_ON_FORK(", ROOT / "native/libvgpu/src")
    assert len(objects) == len(declared.splitlines()) > 0
    assert all(pages.start % 4096 == 0 and len(pages) % 4096 == 0 for pages in objects)
    end = max(pages.stop for pages in objects)
    assert not [area for area in wiped_on_fork(client.pid) if area.start < end]
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    emptied = {page for area in wiped_on_fork(client.pid) for page in area[::4096]}
    for pages in objects:
        assert set(pages[::4096]) <= emptied
