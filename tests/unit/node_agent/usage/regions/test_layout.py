"""Our mirror of the region's layout against the header that libvgpu is compiled with."""

import ctypes
import subprocess
from pathlib import Path

import pytest
from hami_node_agent.usage.regions import layout as layout

from tests.waiting import PATIENCE_S

HEADER = Path(__file__).parents[5] / "native/libvgpu/include/vgpu_region.h"
C_NAMES = {
    layout.HeadV1: {
        "magic": "magic",
        "major": "major_version",
        "minor": "minor_version",
        "device_count": "device_count",
        "uuids": "uuid",
        "limit_bytes": "limit_bytes",
        "sm_limit_percent": "sm_limit_percent",
    },
    layout.TailV1: {
        "slot_count": "process_count",
        "utilization_switch": "utilization_switch",
        "recent_kernel": "recent_kernel",
        "priority": "priority",
        "last_kernel_epoch_s": "last_kernel_time_s",
    },
    layout.SlotV1: {
        "pid": "pid",
        "host_pid": "host_pid",
        "memory": "mem",
        "monitor_used_bytes": "monitor_used_bytes",
        "utilization": "util",
        "status": "status",
        "sequence": "seqlock",
    },
    layout.MemoryV1: {
        "context_bytes": "context_bytes",
        "module_bytes": "module_bytes",
        "buffer_bytes": "data_bytes",
        "offset_bytes": "offset_bytes",
        "total_bytes": "total_bytes",
    },
    layout.UtilizationV1: {
        "decoder_percent": "decoder_percent",
        "encoder_percent": "encoder_percent",
        "sm_percent": "sm_percent",
    },
}
C_STRUCTS = {
    layout.HeadV1: ("vgpu_region", 0),
    layout.TailV1: ("vgpu_region", layout.V1.tail_at),
    layout.SlotV1: ("vgpu_region_slot", 0),
    layout.MemoryV1: ("vgpu_region_mem", 0),
    layout.UtilizationV1: ("vgpu_region_util", 0),
}


@pytest.mark.native
def test_every_offset_is_that_of_the_c_header(tmp_path: Path) -> None:
    expected, lines = [], []
    for kind, names in C_NAMES.items():
        struct, base = C_STRUCTS[kind]
        for field, c_field in names.items():
            expected.append(base + getattr(kind, field).offset)
            lines.append(f'printf("%zu\\n", offsetof(struct {struct}, {c_field}));')
    for kind, struct in (
        (layout.SlotV1, "vgpu_region_slot"),
        (layout.MemoryV1, "vgpu_region_mem"),
        (layout.UtilizationV1, "vgpu_region_util"),
    ):
        expected.append(ctypes.sizeof(kind))
        lines.append(f'printf("%zu\\n", sizeof(struct {struct}));')
    expected.append(layout.V1.first_kernel_at or 0)
    lines.append('printf("%zu\\n", (size_t)vgpu_region_first_kernel_ms((struct vgpu_region *)0));')
    expected += [layout.SIZE_V1, layout.BANKS, layout.BANK_BYTES]
    lines.append('printf("%zu\\n", sizeof(struct vgpu_region));')
    lines.append('printf("%d\\n%d\\n", VGPU_BANKS, VGPU_BANK_BYTES);')

    assert offsets(tmp_path, lines) == expected


def test_the_sizes_are_those_of_the_published_files() -> None:
    assert (layout.SIZE_V1, layout.SIZE_V0) == (2008952, 1197896)


def offsets(folder: Path, lines: list[str]) -> list[int]:
    source = folder / "offsets.c"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{body}\nreturn 0;\n}}\n'
    )
    program = folder / "offsets"
    subprocess.run(["cc", "-std=c11", "-o", program, source], check=True, timeout=PATIENCE_S)
    printed = subprocess.run(
        [program], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return [int(line) for line in printed.stdout.split()]
