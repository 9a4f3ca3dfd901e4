"""A full cluster, at the API server and in the ledger alike, before either is asked anything."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.objects import Key, StoredObject, seal

from bench.filter.objects import CARDS, MEMORY_MIB, card_uuid, node_name, node_object, pod_object

COMMIT = 5000
"""Objects per transaction of the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How full each node is: so many placed pods, each with one slice of one card."""

    title: str
    pods_per_node: int
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One placed pod."""

    name: str
    node: str
    card: int
    body: dict[str, Any]

    @property
    def uid(self) -> str:
        """Return the uid that the API server gave it."""
        return str(self.body["metadata"]["uid"])


def names_of(nodes: int) -> list[str]:
    """The nodes of a cluster of that size."""
    return [node_name(number) for number in range(nodes)]


def placed_pods(nodes: int, fill: Fill) -> list[Placed]:
    """All placed pods, evenly on the cards."""
    found = []
    for node in names_of(nodes):
        for number in range(fill.pods_per_node):
            name = f"placed-{node.partition('.')[0]}-{number}"
            body = pod_object(
                name, memory_mib=fill.memory_mib, core_percent=fill.core_percent, node=node
            )
            found.append(Placed(name=name, node=node, card=number % CARDS, body=body))
    return found


async def fill_api_server(folder: Path, nodes: int, placed: list[Placed]) -> None:
    """Write the API server's store while it is not running: 80 000 requests would take minutes."""
    journal = Journal(folder)
    version, _ = await journal.load()
    version += 100
    pending: list[tuple[Key, StoredObject | None]] = []
    for collection, body in _objects(nodes, placed):
        version += 1
        stored = seal(collection, body, version)
        pending.append((stored.key, stored))
        if len(pending) == COMMIT:
            await journal.commit(version, pending)
            pending = []
    await journal.commit(version, pending)
    await journal.close()


def _objects(nodes: int, placed: list[Placed]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield (
        "namespaces",
        {
            "metadata": {"name": "default", "uid": str(uuid.uuid4()), "creationTimestamp": None},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        },
    )
    for name in names_of(nodes):
        yield "nodes", node_object(name)
    for pod in placed:
        yield "pods", pod.body


async def fill_ledger(dsn: str, nodes: int, fill: Fill, placed: list[Placed]) -> None:
    """Cards with what the placed pods hold, and their allocations."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await _write_cards(connection, nodes, fill)
            await write_allocations(connection, fill, placed)
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _write_cards(connection: Any, nodes: int, fill: Fill) -> None:
    names = names_of(nodes)
    await _copy(connection, "nodes", "name", [(name,) for name in names])
    rows = []
    for name in names:
        for card in range(CARDS):
            used = fill.pods_per_node // CARDS + (card < fill.pods_per_node % CARDS)
            held = (used, used * fill.memory_mib, used * fill.core_percent)
            kind = ("NVIDIA", card, "NVIDIA A100-SXM4-80GB")
            limits = (10, MEMORY_MIB, 100)
            rows.append((card_uuid(name, card), name, *kind, *limits, *limits, True, *held))
    columns = (
        "uuid node vendor index type slots memory_mib core_percent ceiling_slots ceiling_memory_mib"
        " ceiling_core_percent healthy used_slots used_memory_mib used_core_percent"
    )
    await _copy(connection, "devices", columns, rows)


async def write_allocations(connection: Any, fill: Fill, placed: list[Placed]) -> None:
    """Grants of these pods, in state `allocated`; the cards' counters are the caller's."""
    numbered = [(str(uuid.uuid4()), number, pod) for number, pod in enumerate(placed, 1)]
    await _copy(
        connection,
        "allocations",
        "id pod_uid namespace pod_name attempt node state token",
        [(i, p.uid, "default", p.name, 1, p.node, "allocated", n) for i, n, p in numbered],
    )
    await connection.execute("SELECT setval('allocation_tokens', $1)", len(numbered) + 1)
    await _copy(
        connection,
        "allocation_containers",
        "allocation_id container_index name role",
        [(i, 0, "main", "app") for i, _, _ in numbered],
    )
    share = ("NVIDIA", fill.memory_mib, fill.core_percent)
    await _copy(
        connection,
        "allocation_devices",
        "allocation_id container_index position container_name role device_uuid vendor memory_mib"
        " core_percent",
        [(i, 0, 0, "main", "app", card_uuid(p.node, p.card), *share) for i, _, p in numbered],
    )


async def _copy(connection: Any, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=columns.split())
