"""Spans of all services, where they are files of this machine: the local system's.

On a cluster spans are at the collector, and a page has a link to its viewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from hamicommon.telemetry.waterfall import TraceSpan, Waterfall, read_spans, spans_of_pod, waterfall

MOST_BYTES = 2 * 1024 * 1024
"""Of each file, its end: some thousand spans, the newest."""


class TraceFiles:
    """One folder of `*.jsonl`, each line a finished span."""

    def __init__(self, folder: Path | None) -> None:
        """None: there are no such files."""
        self._folder = folder
        self._turn = asyncio.Lock()
        self._known: dict[Path, tuple[tuple[int, int], list[TraceSpan]]] = {}
        """By file: its size and change time, and what it had then."""

    async def of_pod(self, uid: str) -> Waterfall | None:
        """The pod's waterfall over all services; None: no span of it is here."""
        if self._folder is None:
            return None
        async with self._turn:
            return await asyncio.to_thread(self._drawn, self._folder, uid)

    def _drawn(self, folder: Path, uid: str) -> Waterfall | None:
        every = [span for path in sorted(folder.glob("*.jsonl")) for span in self._spans(path)]
        own = spans_of_pod(every, uid)
        return waterfall(own, every) if own else None

    def _spans(self, path: Path) -> list[TraceSpan]:
        """A file that can't be read has none: the page has more to show."""
        try:
            found = path.stat()
            state = (found.st_size, found.st_mtime_ns)
            if path not in self._known or self._known[path][0] != state:
                self._known[path] = (state, read_spans(_lines(path, found.st_size)))
        except OSError:
            return []
        return self._known[path][1]


def _lines(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as opened:
        opened.seek(max(0, size - MOST_BYTES))
        yield from opened
