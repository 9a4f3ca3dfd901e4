"""Read traces in the format of Alibaba's openb (`cluster-trace-gpu-v2023`): two CSV files.

Nodes: `sn,cpu_milli,memory_mib,gpu,model`. Pods: `name,cpu_milli,memory_mib,num_gpu,gpu_milli`, and
where the file has them `gpu_spec` (models, with `|` between), `creation_time` and `deletion_time`.
Ours is the column `gpu_memory_mib` of both: memory of each card, and of it what each slice takes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest

from hamireplay.trace import WHOLE_CARD_MILLI, Trace, TraceNode, TracePod

_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NODE_MORE = ("gpu_memory_mib",)
_POD_MORE = ("gpu_memory_mib", "gpu_spec", "creation_time", "deletion_time")
"""Columns of pods that are read if a file has them."""
_OPENB_MORE = frozenset({"qos", "pod_phase", "scheduled_time"})
"""Columns of openb that are not used, and not warned of."""
_MAX_CARDS = 1024
"""Maximum number of cards of one node."""
_MAX_CARDS_IN_ALL = 1_000_000
_MAX_PODS = 1_000_000
"""Maximum number of pods of a file."""
_MAX_DIGITS = 20
"""Maximum number of digits of a number; Python reads very long ones slowly."""


def read_trace(nodes: str, pods: str, *, nodes_file: str, pods_file: str) -> Trace:
    """Read both texts; nodes without a card are left out, as in the published runs.

    Raises: InvalidRequest naming the file, the line, the column and what would be right.
    """
    found = Trace(
        nodes=read_nodes(nodes, nodes_file=nodes_file),
        pods=list(_pods(pods, pods_file)),
        unread=(
            *_unread(nodes, nodes_file, (*_NODE, *_NODE_MORE)),
            *_unread(pods, pods_file, (*_POD, *_POD_MORE)),
        ),
    )
    if not any(pod.cards for pod in found.pods):
        raise InvalidRequest(f"{pods_file} has no pod that asks for a card")
    return found


def read_nodes(text: str, *, nodes_file: str) -> list[TraceNode]:
    """Read the nodes that have a card.

    Raises: InvalidRequest as `read_trace`.
    """
    found = [node for node in _nodes(text, nodes_file) if node.cards]
    if not found:
        raise InvalidRequest(f"{nodes_file} has no node with a card")
    if (cards := sum(node.cards for node in found)) > _MAX_CARDS_IN_ALL:
        raise InvalidRequest(
            f"{nodes_file} has {cards} cards: expected at most {_MAX_CARDS_IN_ALL}"
        )
    return found


def _nodes(text: str, source: str) -> Iterator[TraceNode]:
    seen: set[str] = set()
    for where, row in _rows(text, source, _NODE):
        name = row["sn"]
        if not name or name in seen:
            raise InvalidRequest(f"{where}: sn is {clip(name)!r}: expected a unique name")
        seen.add(name)
        yield TraceNode(
            name=NodeName(name),
            cpu_milli=_whole(row, "cpu_milli", where),
            memory_mib=_whole(row, "memory_mib", where),
            cards=_whole(row, "gpu", where, maximum=_MAX_CARDS),
            model=row["model"] or "unknown",
            card_memory_mib=_whole(row, "gpu_memory_mib", where),
        )


def _pods(text: str, source: str) -> Iterator[TracePod]:
    for number, (where, row) in enumerate(_rows(text, source, _POD)):
        if number == _MAX_PODS:
            raise InvalidRequest(
                f"{source} has more than {_MAX_PODS} pods: expected a part of them"
            )
        cards = _whole(row, "num_gpu", where, maximum=_MAX_CARDS)
        milli = _whole(row, "gpu_milli", where, maximum=WHOLE_CARD_MILLI)
        card_memory = _whole(row, "gpu_memory_mib", where)
        if not cards and (milli or card_memory):
            raise InvalidRequest(
                f"{where}: num_gpu is 0 with gpu_milli {milli} and gpu_memory_mib {card_memory}: "
                "expected 1 for a share of a card, or nothing of one"
            )
        if milli % 10 or (cards and not milli and not card_memory):
            raise InvalidRequest(
                f"{where}: gpu_milli is {milli}: expected 10 to 1000 in steps of 10, because "
                "cores are granted in percent"
            )
        arrives = _seconds(row, "creation_time", where)
        ends = _seconds(row, "deletion_time", where)
        if arrives is not None and ends is not None and ends < arrives:
            raise InvalidRequest(f"{where}: deletion_time {ends:g} is before creation_time")
        yield TracePod(
            name=row["name"],
            cpu_milli=_whole(row, "cpu_milli", where),
            memory_mib=_whole(row, "memory_mib", where),
            cards=cards,
            card_milli=milli,
            card_memory_mib=card_memory,
            models=tuple(dict.fromkeys(m for m in (row.get("gpu_spec") or "").split("|") if m)),
            arrives_s=arrives,
            ends_s=ends,
        )


def _rows(
    text: str, source: str, columns: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    reader = csv.DictReader(io.StringIO(text))
    if not text.strip():
        raise InvalidRequest(f"{source} is empty: expected a first line {','.join(columns)}")
    try:
        names = reader.fieldnames or ()
        lacking = [name for name in columns if name not in names]
        if lacking:
            raise InvalidRequest(
                f"{source}: the first line lacks {', '.join(lacking)}: {','.join(columns)} is "
                "wanted"
            )
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(
                    f"{source}: the first line has {clip(name)!r} twice: expected once"
                )
        for row in reader:
            where = f"{source} line {reader.line_num}"
            if None in row:
                raise InvalidRequest(
                    f"{where}: expected {len(names)} values, as the first line has them, and "
                    f"{len(names) + len(row[None])} are there"
                )
            if any(row[name] is None for name in columns):
                raise InvalidRequest(f"{where}: expected a value for each of {', '.join(columns)}")
            yield where, row
    except csv.Error as exc:
        raise InvalidRequest(f"{source} line {max(reader.line_num, 1)}: not CSV: {exc}") from exc


def _unread(text: str, source: str, columns: tuple[str, ...]) -> Iterator[str]:
    """Return the columns that are not read, as `source: column`."""
    for name in csv.DictReader(io.StringIO(text)).fieldnames or ():
        if name not in columns and name not in _OPENB_MORE:
            yield f"{source}: {clip(name)}"


def _whole(row: Mapping[str, str], column: str, where: str, *, maximum: int = 2**40) -> int:
    text = (row.get(column) or "0").strip()
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not plain or int(text) > maximum:
        raise InvalidRequest(
            f"{where}: {column} is {clip(text)!r}: expected a whole number from 0 to {maximum}"
        )
    return int(text)


def _seconds(row: Mapping[str, str], column: str, where: str) -> float | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**53:
        raise InvalidRequest(f"{where}: {column} is {clip(text)!r}: expected seconds")
    return value
