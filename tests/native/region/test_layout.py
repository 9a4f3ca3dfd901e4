"""The shared region is HAMi's version 1 to the byte: for the compiler, and in a written file."""

import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.native.machine import CARDS, MIB, ROOT, Container, open_context

# The published table: (field, offset, size).
REGION = [
    ("magic", 0, 4),
    ("major_version", 4, 4),
    ("minor_version", 8, 4),
    ("sm_init", 12, 4),
    ("sem_owner", 16, 8),
    ("sem", 24, 32),
    ("device_count", 56, 8),
    ("uuid", 64, 1536),
    ("limit_bytes", 1600, 128),
    ("sm_limit_percent", 1728, 128),
    ("slots", 1856, 2007040),
    ("process_count", 2008896, 4),
    ("utilization_switch", 2008900, 4),
    ("recent_kernel", 2008904, 4),
    ("priority", 2008908, 4),
    ("last_kernel_time_s", 2008912, 8),
    ("post_init_sem", 2008920, 32),
]
SLOT = [
    ("pid", 0, 4),
    ("host_pid", 4, 4),
    ("mem", 8, 1024),
    ("monitor_used_bytes", 1032, 128),
    ("util", 1160, 768),
    ("status", 1928, 4),
    ("seqlock", 1936, 8),
    ("spare", 1944, 16),
]
MEM = [
    ("context_bytes", 0, 8),
    ("module_bytes", 8, 8),
    ("data_bytes", 16, 8),
    ("offset_bytes", 24, 8),
    ("total_bytes", 32, 8),
    ("spare", 40, 24),
]
UTIL = [
    ("decoder_percent", 0, 8),
    ("encoder_percent", 8, 8),
    ("sm_percent", 16, 8),
    ("spare", 24, 24),
]
BANK = 2011136
"""A whole number of pages: every sixteen devices have a structure of their own in the file."""
TABLES = {
    "vgpu_region": REGION,
    "vgpu_region_slot": SLOT,
    "vgpu_region_mem": MEM,
    "vgpu_region_util": UTIL,
}


def test_every_offset_is_the_published_one(compile_c: Callable[..., Path]) -> None:
    lines = [
        f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
        f"sizeof(((struct {name} *)0)->{field}));"
        for name, table in TABLES.items()
        for field, _, _ in table
    ] + [f'printf("{name} %zu\\n", sizeof(struct {name}));' for name in TABLES]
    source = '#include <stdio.h>\n#include "vgpu_region.h"\nint main(void) {' + "".join(lines) + "}"
    program = compile_c(source, f"-I{ROOT / 'native/libvgpu/include'}")
    printed = subprocess.run(
        [program], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert printed == [
        f"{name}.{field} {offset} {size}"
        for name, table in TABLES.items()
        for field, offset, size in table
    ] + [
        "vgpu_region 2008952",
        "vgpu_region_slot 1960",
        "vgpu_region_mem 64",
        "vgpu_region_util 48",
    ]


def fields(content: bytes, offset: int, kind: str, count: int = 1) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}{kind}", content, offset)


def test_a_monitor_finds_what_it_reads(container: Container) -> None:
    container.limits(
        f"hami-limits 1\ndevice {CARDS[0]} memory_bytes {10 * MIB} core_percent 30\n"
        f"device {CARDS[1]} memory_bytes 0 core_percent 0\n"
    )
    client = container.start(CUDA_TASK_PRIORITY="0")
    client.call("open_device")
    client.alloc(3 * MIB)
    content = container.region.read_bytes()
    assert len(content) == 4 * BANK
    assert fields(content, 0, "i", 3) == (19920718, 1, 2)
    assert fields(content, 56, "Q") == (2,)
    for index, uuid in enumerate(CARDS):
        assert content[64 + 96 * index :][:96] == uuid.encode().ljust(96, b"\0")
    assert content[64 + 96 * 2 : 1600] == bytes(96 * 14)
    assert fields(content, 1600, "Q", 3) == (10 * MIB, 0, 0)
    assert fields(content, 1728, "Q", 2) == (30, 100)
    assert fields(content, 1856, "i")[0] == client.pid
    assert fields(content, 1856 + 1928, "i") == (1,)
    assert fields(content, 1856 + 8, "Q", 5) == (0, 0, 3 * MIB, 0, 3 * MIB)
    assert fields(content, 2008896, "i", 4) == (1, 1, 2, 0)
    assert abs(fields(content, 2008912, "Q")[0] - time.time()) < 60
    client.close()
    content = container.region.read_bytes()
    assert fields(content, 2008896, "i") == (0,)
    assert fields(content, 1856 + 1928, "i") == (0,)


def test_a_launch_is_noted_for_the_monitor(container: Container) -> None:
    container.limit(10 * MIB)
    client = container.start()
    client.call("open_device")
    with container.region.open("r+b") as file:
        file.seek(2008904)
        file.write(struct.pack("<i", 0))
        file.seek(2008912)
        file.write(struct.pack("<Q", 5))
    assert client.call("launch", kernels=3) == {"result": 0}
    content = container.region.read_bytes()
    assert fields(content, 2008904, "i") == (2,)
    assert abs(fields(content, 2008912, "Q")[0] - time.time()) < 60


FIRST_KERNEL_AT = 1856 + 4 * 1960 + 1160 + 24
"""In the utilization of the fifth slot, where HAMi's layout has an unused field."""


def test_the_first_launch_of_the_container_is_noted_once(container: Container) -> None:
    container.limit(10 * MIB)
    client = container.start()
    client.call("open_device")
    assert fields(container.region.read_bytes(), FIRST_KERNEL_AT, "Q") == (0,)
    began_ms = time.time() * 1000

    assert client.call("launch", kernels=3) == {"result": 0}
    [first_ms] = fields(container.region.read_bytes(), FIRST_KERNEL_AT, "Q")
    assert began_ms - 1 <= first_ms <= time.time() * 1000
    client.close()
    second = container.start()
    second.call("open_device")
    assert second.call("launch", kernels=3) == {"result": 0}

    assert fields(container.region.read_bytes(), FIRST_KERNEL_AT, "Q") == (first_ms,)


def test_a_monitor_may_lower_a_limit_while_the_program_runs_but_not_raise_it(
    container: Container,
) -> None:
    container.limit(10 * MIB)
    client = container.start()
    client.call("open_device")
    for written, seen in ((4 * MIB, 4 * MIB), (1 << 40, 10 * MIB), (0, 10 * MIB)):
        with container.region.open("r+b") as file:
            file.seek(1600)
            file.write(struct.pack("<Q", written))
        assert client.info()[1] == seen


def test_a_monitor_of_hami_sees_what_a_limited_process_computes(container: Container) -> None:
    container.limit(100 * MIB, cores=50)
    client = open_context(container.start())
    deadline = time.monotonic() + 60
    while not 1 <= sm_percent(container) <= 100:
        assert time.monotonic() < deadline, "no sample was shown"
        assert client.call("launch", kernels=50, blocks=4096) == {"result": 0}
    assert client.close() == 0
    assert sm_percent(container) == 0


def sm_percent(container: Container) -> int:
    """Return the percentage of the first slot on the first card."""
    at = 1856 + 1160 + 16
    return int(struct.unpack_from("<Q", container.region.read_bytes(), at)[0])
