"""The limits file: what libvgpu enforces in one container, replaced by rename when it changes.

    hami-limits 1
    policy default|force|disable
    oversubscribe 0|1
    device <GPU-uuid> memory_bytes <n> core_percent <n>

memory_bytes 0 means no memory limit; core_percent 0 or >= 100 no core limit. A visible card that is
not listed may not be used at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamicommon.domain.allocations import DeviceShare

MIB = 1024 * 1024


def limits_text(shares: Sequence[DeviceShare], *, policy: str, oversubscribe: bool) -> str:
    """The file's content for these slices."""
    lines = ["hami-limits 1", f"policy {policy}", f"oversubscribe {int(oversubscribe)}"]
    lines += [
        f"device {share.uuid} memory_bytes {share.memory_mib * MIB}"
        f" core_percent {share.core_percent}"
        for share in shares
    ]
    return "\n".join(lines) + "\n"
