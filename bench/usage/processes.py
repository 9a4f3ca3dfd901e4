"""Processor time and memory of servers that are several processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from bench.filter.figures import resident_mb

LOOK_S = 0.5


def family(pid: int) -> list[int]:
    """The process and its living children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        children = []
    return [pid, *map(int, children)]


def family_cpu_s(pid: int) -> float:
    """CPU time of a process, its living children, and those that it has outlived."""
    total = 0
    for number, each in enumerate(family(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += sum(map(int, fields[11 : 15 if number == 0 else 13]))
    return total / os.sysconf("SC_CLK_TCK")


class MostMemory:
    """The most resident memory of a process, looked at from a thread."""

    def __init__(self, pid: int, look: Callable[[int], float] = resident_mb) -> None:
        self._pid = pid
        self._look = look
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most_mb = 0.0

    def __enter__(self) -> MostMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.most_mb = max(self.most_mb, self._look(self._pid))
