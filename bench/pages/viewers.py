"""Fifty open overviews while cards change: the cost of the streams, and whether each is current.

Cards are written at a fixed rate, as the scheduler writes them. Every viewer keeps one stream; at
the end each must have the newest version. Processor time is the service's own, so other load of the
machine falsifies it least.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import orjson

from bench.figures import cpu_s, resident_mb
from bench.pages.service import Service

CORE_BUDGET_PERCENT = 20.0
BATCHES_PER_S = 10
SETTLE_S = 180.0
RELOADED = 2
"""The first message of a viewer without a page is one of it; the second is a page that was lost."""
PARTS = 10
"""Parts of the run; memory is read after each."""
_CHANGE = """
UPDATE devices SET used_core_percent = 1 + (used_core_percent + 7) % 90, updated_at = now()
 WHERE uuid IN (SELECT uuid FROM devices WHERE present ORDER BY hashtext(uuid || $1::text) LIMIT $2)
"""
_CELL = re.compile(r'aria-label="\S+ card (\d+): ([^"]*)"')
_CORES = "SELECT node, index, used_core_percent FROM devices WHERE present ORDER BY node, index"


@dataclass(slots=True)
class Viewer:
    """State of one open page."""

    lines: dict[str, str] = field(default_factory=dict)
    """Lines of the grid by node."""
    version: str = "0"
    messages: int = 0
    resyncs: int = 0
    megabytes: float = 0.0


async def watch(
    running: Service, *, viewers: int, events_per_s: int, seconds: float, away_s: float = 0.0
) -> Mapping[str, Any]:
    """`away_s`: one more viewer leaves for so long in the middle, and comes back by its last id.

    Raises: SystemExit when a viewer ends without the newest cells.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=running.url, timeout=60.0, limits=limits) as http:
        await http.get("/")
        seen = [Viewer() for _ in range(viewers)]
        streams = [asyncio.create_task(_look(http, viewer)) for viewer in seen]
        traveller = Viewer()
        if away_s:
            streams.append(asyncio.create_task(_leave_and_come_back(http, traveller, away_s)))
        connection = await asyncpg.connect(running.dsn)
        try:
            # The figure excludes the first message of each viewer and the imports for it.
            await _until(lambda: all(viewer.messages for viewer in seen))
            memory_mb, written = [resident_mb(running.pid)], 0
            cpu, began = cpu_s(running.pid), time.monotonic()
            for _ in range(PARTS):
                written += await _write(connection, events_per_s, seconds / PARTS)
                memory_mb.append(resident_mb(running.pid))
            took = time.monotonic() - began
            used = cpu_s(running.pid) - cpu
            last = {(row[0], row[1]): row[2] for row in await connection.fetch(_CORES)}
            everybody = [*seen, traveller] if away_s else seen
            await _until(lambda: all(_is_newest(viewer, last) for viewer in everybody))
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await connection.close()
    return {
        "viewers": viewers,
        "events_per_s": round(written / took, 1),
        "seconds": round(took, 1),
        "core_percent": round(100 * used / took, 1),
        "memory_mb": [round(each) for each in memory_mb],
        "messages_per_viewer": round(sum(viewer.messages for viewer in seen) / viewers, 1),
        "mb_per_viewer": round(sum(viewer.megabytes for viewer in seen) / viewers, 1),
        "resyncs": sum(viewer.resyncs for viewer in seen),
        "came_back": "got all that it missed in one message"
        if traveller.resyncs < RELOADED
        else "loaded its page again",
    }


async def _leave_and_come_back(http: httpx.AsyncClient, viewer: Viewer, away_s: float) -> None:
    """Leave as a hidden tab or a sleeping laptop does, and come back."""
    stream = asyncio.create_task(_look(http, viewer))
    await _until(lambda: viewer.messages > 1)
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    await asyncio.sleep(away_s)
    await _look(http, viewer)


async def _look(http: httpx.AsyncClient, viewer: Viewer) -> None:
    headers = {"Last-Event-ID": viewer.version}
    async with http.stream("GET", "/live", headers=headers, timeout=None) as answer:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("id: "):
                viewer.version = line.removeprefix("id: ")
            elif line.startswith("data: ") and kind in ("changed", "resync"):
                viewer.messages += 1
                viewer.megabytes += len(line) / 1e6
                if kind == "resync":
                    # It would load its page again, which has the newest cells.
                    viewer.resyncs += 1
                    viewer.lines.clear()
                viewer.lines.update(orjson.loads(line[6:]).get("nodes", {}))


async def _write(connection: Any, events_per_s: int, seconds: float) -> int:
    """Write changes at an even rate; return how many there were."""
    began, written = time.monotonic(), 0
    while (gone := time.monotonic() - began) < seconds:
        due = int(gone * events_per_s) - written
        if due > 0:
            status = await connection.execute(_CHANGE, str(began + written), due)
            written += int(status.rpartition(" ")[2])
        await asyncio.sleep(1 / BATCHES_PER_S)
    return written


def _is_newest(viewer: Viewer, cores: Mapping[tuple[str, int], int]) -> bool:
    """Return whether every cell that it was sent is as the ledger has the card."""
    return all(
        f" {cores[node, int(index)]} % cores" in label
        for node, line in viewer.lines.items()
        for index, label in _CELL.findall(line)
    )


async def _until(look: Any) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not look():
        if time.monotonic() > deadline:
            raise SystemExit("a viewer did not get what changed")
        await asyncio.sleep(0.5)
