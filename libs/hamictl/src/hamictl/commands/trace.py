"""`hamictl trace`: the steps of a pod from admission to its first kernel.

Spans come from the local system's files or from given files. Those of a cluster are at its
collector; then the ledger's own steps of the pod are drawn instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.telemetry.waterfall import (
    TraceSpan,
    Waterfall,
    WaterfallSpan,
    latest_uid,
    read_spans,
    spans_of_pod,
    waterfall,
)

from hamictl.commands.answers import pod_in_cluster, pod_uid
from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.pod_names import pod_name, pod_names
from hamictl.commands.runner import run, spoken_errors
from hamictl.output import render
from hamictl.output.records import TABLE, OutputFormat, Records, TableColumn, plain_column
from hamictl.output.terminal import console, note
from hamictl.target import Installation, find_target
from hamictl.view.waterfall import closing, heading, length, waterfall_table

MAX_BYTES = 256 * 1024 * 1024
"""Maximum bytes read of one file, from its end."""


def trace(
    pod: Annotated[
        str, typer.Argument(help="name of a pod, or NAMESPACE/NAME", autocompletion=pod_names)
    ],
    namespace: Namespace = "default",
    spans: Annotated[
        list[Path] | None,
        typer.Option(
            "--spans",
            help="files of spans, one JSON object per line, or their folder (default: the local "
            "system's)",
        ),
    ] = None,
    output: Answered = TABLE,
) -> None:
    """Draw the steps of a pod, from admission to its first kernel.

    RANK: p83 means that 83 % of such steps took no longer in the hour before.
    """
    space, name = pod_name(pod, namespace)
    with spoken_errors():
        found, every = _spans(f"{space}/{name}", spans)
    if not found:
        found = run(_steps(space, name))
        note("no spans of this pod found: these are the ledger's steps (docs/hamictl.md, trace)")
    _show(waterfall(found, every), f"{space}/{name}", output)


def _spans(pod: str, files: list[Path] | None) -> tuple[list[TraceSpan], list[TraceSpan]]:
    """Return the pod's spans, and all spans. Raises: InvalidRequest for an unreadable file."""
    target = find_target()
    folders = files or ([] if target.traces is None else [target.traces])
    every = read_spans(line for path in folders for line in _lines(path))
    uid = latest_uid(every, pod)
    return ([] if uid is None else spans_of_pod(every, uid)), every


def _lines(path: Path) -> Iterator[bytes]:
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        try:
            with file.open("rb") as opened:
                # A pipe or another non-file is read as a whole.
                if (more := file.stat().st_size - MAX_BYTES) > 0:
                    opened.seek(more)
                yield from opened
        except OSError as exc:
            raise InvalidRequest(f"--spans {file}: {exc.strerror}") from exc


async def _steps(namespace: str, name: str) -> list[TraceSpan]:
    """Return the pod's states in the ledger, each with its start and end."""
    target = find_target()
    uid = await pod_uid(target, namespace, name)
    rows = await target.scheduler_client().rows(f"/v1/pods/{uid}/history")
    if not rows:
        raise NotFound(f"pod {namespace}/{name} has no spans and no steps in the ledger")
    created = await _creation_us(target, namespace, name)
    moments = [_microseconds(row["at"]) for row in rows]
    states = [str(row["state"]) for row in rows]
    if created is not None:
        moments, states = [created, *moments], ["created", *states]
    return [
        _step(state, at, after)
        for state, at, after in zip(states, moments, [*moments[1:], moments[-1]], strict=True)
    ]


def _step(state: str, at_us: int, end_us: int) -> TraceSpan:
    return TraceSpan(
        name=state,
        service="ledger",
        trace_id="",
        span_id=f"{state}@{at_us}",
        parent_id=None,
        start_us=at_us,
        end_us=end_us,
        failed=state in ("failed", "expired"),
    )


async def _creation_us(target: Installation, namespace: str, name: str) -> int | None:
    pod = await pod_in_cluster(target, namespace, name)
    return None if pod is None else _microseconds(pod["metadata"]["creationTimestamp"])


def _microseconds(text: object) -> int:
    return round(datetime.fromisoformat(str(text)).timestamp() * 1_000_000)


def _show(drawn: Waterfall, pod: str, output: OutputFormat) -> None:
    if output.for_people:
        console.print(heading(drawn, pod), highlight=False, markup=False)
        console.print(waterfall_table(drawn, console.width))
        for line in closing(drawn):
            console.print(line, highlight=False, markup=False)
        return
    rows = [_row(row) for row in (*drawn.rows, *drawn.releases) if isinstance(row, WaterfallSpan)]
    columns = [
        plain_column("SPAN", "name"),
        TableColumn("DURATION", lambda row: length(round(row["lasted_ms"] * 1000)), "duration_ms"),
    ]
    shown = Records(
        kind="Span",
        plural="spans",
        columns=columns,
        rows=rows,
        name=lambda row: f"span/{row['span_id']}",
    )
    render.write(shown, output)


def _row(row: WaterfallSpan) -> dict[str, Any]:
    span = row.span
    return {
        "name": span.name,
        "service": span.service,
        "trace_id": span.trace_id or None,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "start_at": datetime.fromtimestamp(span.start_us / 1_000_000, UTC).isoformat(),
        "lasted_ms": span.duration_us / 1000,
        "percentile": row.percentile,
        "failed": span.failed,
        "outcome": span.outcome or None,
    }
