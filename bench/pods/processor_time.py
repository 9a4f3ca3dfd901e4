"""CPU time of a benchmark and of all that it started, by program."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_ms() -> Counter[str]:
    """CPU time of this process and of all below it until now, by program."""
    found: Counter[str] = Counter()
    parents: dict[int, int] = {}
    spent: dict[int, tuple[str, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text().rpartition(")")
                fields = tail.split()
                pid, name = int(entry.name), head.partition("(")[2]
                parents[pid] = int(fields[1])
                # User and system time, and those of children that were waited for.
                spent[pid] = name, sum(map(int, fields[11:15]))
    for pid, (name, ticks) in spent.items():
        line = pid
        while line > 1 and line != os.getpid():
            line = parents.get(line, 0)
        if line == os.getpid():
            mine = "played nodes" if pid == os.getpid() else _program(pid, name)
            found[mine] += round(1000 * ticks / _TICKS_PER_S)
    return found


def _program(pid: int, name: str) -> str:
    with suppress(OSError):
        if b"hami_scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return "scheduler"
    return name
