"""One stored value that is wrong: the change, and its outcome.

A case changes one field of a row, a message, an annotation or a file on a running system with a pod
that runs. Afterwards every process lives, pods are still scheduled, and the change was refused,
repaired, shown, or has no effect by a rule that the case states.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import httpx
import nats
import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import System, wait

WITHIN_S = 60.0
"""Within this, scheduling continues, and the wrong value is repaired or shown."""


class Outcome(StrEnum):
    """Possible results of a corruption."""

    REFUSED = "refused"
    """The value can't be stored, or is not read: stored values stay the same."""
    REPAIRED = "repaired"
    SHOWN = "shown"
    """The value stays, and people see it."""
    WITHOUT_EFFECT = "without effect"
    """By the rule of the case."""


@dataclass(slots=True)
class Room:
    """A running system with one pod, which is to be deceived."""

    system: System
    pod: Json
    """A running pod with 1024 MiB and 5 cores of one card."""
    node: str
    allocation: str
    card: str
    drift_from: int
    """Lines of the drift journal up to here are older."""
    kept: str = ""
    """Earlier value that a case keeps, as `before` and `content`."""
    before: str = ""
    content: bytes = b""
    undone: list[Callable[[], object]] = field(default_factory=list)
    """Called at the end of the case, the last one first."""

    @property
    def other_node(self) -> str:
        """The node that the pod is not on."""
        names = [each["metadata"]["name"] for each in self.system.get("/api/v1/nodes")["items"]]
        return next(name for name in sorted(names) if name != self.node)

    @property
    def uid(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["uid"])

    @property
    def name(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["name"])

    def sql(self, query: str) -> str:
        """Query or change the ledger; names of the room are filled in."""
        return self.system.sql(self.fill_names(query))

    def fill_names(self, query: str) -> str:
        """Replace `{pod}`, `{node}`, `{other}`, `{card}` and `{id}` by the room's values."""
        for key, value in (
            ("{uid}", self.uid),
            ("{node}", self.node),
            ("{card}", self.card),
            ("{id}", self.allocation),
        ):
            query = query.replace(key, value)
        return query.replace("{other}", self.other_node) if "{other}" in query else query

    def publish(self, subject: str, body: bytes) -> None:
        """Send a message with all rights, as a thief of the bus's rights would."""

        async def send() -> None:
            client = await nats.connect(str(self.system.described["nats_url"]))
            await client.publish(subject, body)
            await client.flush()
            await client.close()

        asyncio.run(send())

    def annotate(self, path: str, annotations: Mapping[str, str | None]) -> None:
        """Change annotations of an object."""
        answer = self.system.api.patch(
            path,
            json={"metadata": {"annotations": dict(annotations)}},
            headers={"content-type": "application/merge-patch+json"},
        )
        assert answer.status_code == 200, answer.text

    @property
    def agent_folder(self) -> Path:
        """Folder on the host that the node's agent writes."""
        return self.system.folder / "nodes" / self.node / "agent"

    def drift(self, kind: str) -> list[str]:
        """Lines of this class that came since the room was made."""
        rows = self.system.sql(
            "SELECT subject || ': ' || detail FROM drift_journal"
            f" WHERE id > {self.drift_from} AND class = '{kind}' ORDER BY id"
        )
        return rows.splitlines()

    def dead_letters(self) -> list[Json]:
        """The newest ones."""
        answer = httpx.get(f"{self.system.scheduler_url}/v1/dead-letters?limit=50", timeout=10)
        return list(answer.json()["items"])

    def doctor(self) -> list[Json]:
        """Return the parts that `hamictl doctor` prints."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "hamictl"), "doctor", "-o", "json"],
            env={
                "HAMI_FOLDER": str(self.system.folder),
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.system.folder),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 6), done.stderr
        return list(json.loads(done.stdout)["items"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """One case."""

    where: str
    """A table and its column, a subject, an annotation, a file."""
    what: str
    outcome: Outcome
    answer: str
    """The system's reaction, as the page describes it."""
    lie: Callable[[Room], object]
    right: Callable[[Room], object] = lambda room: True
    """Whether it is repaired or shown by now."""
    pods_come: bool = True
    """False: the corrupted value is one that admits pods."""

    @property
    def name(self) -> str:
        """Name for `-k`."""
        # `-1` is another case than `1`.
        text = f"{self.where} {self.what}".lower().replace(" -", " minus ").replace("'-", "minus ")
        return "-".join("".join(c if c.isalnum() else " " for c in text).split())


def statement(query: str) -> Callable[[Room], object]:
    """Return a change of the ledger with its owner's rights."""
    return lambda room: room.sql(query)


def answers(query: str, answer: str) -> Callable[[Room], bool]:
    """Return a check that the ledger gives this answer."""
    return lambda room: room.sql(query) == room.fill_names(answer)


def expect_journal_line(kind: str) -> Callable[[Room], object]:
    """Return a check that the drift journal has a new line of this class."""
    return lambda room: room.drift(kind)


def both(*checks: Callable[[Room], object]) -> Callable[[Room], bool]:
    """Return a check that all hold."""
    return lambda room: all(check(room) for check in checks)


def make_refused_change(
    table: str, change: str, where: str, rule: str, *, what: str = ""
) -> Corruption:
    """A change that the schema refuses; `rule` is in the refusal."""
    column = change.partition(" = ")[0]

    def lie(room: Room) -> None:
        with pytest.raises(AssertionError, match=rule):
            room.sql(f"UPDATE {table} SET {change} WHERE {where}")

    return Corruption(
        where=f"`{table}.{column}`",
        what=what or change.partition(" = ")[2].replace("|", " "),
        outcome=Outcome.REFUSED,
        answer="the schema refuses it",
        lie=lie,
    )


def pids(system: System) -> dict[str, int]:
    """Return the pid of every running service."""
    state = json.loads((system.folder / "state.json").read_text())
    return {name: each["pid"] for name, each in state["services"].items() if "pid" in each}


def room_of(system: System, pod: Json) -> Room:
    """The room around a pod that runs."""
    uid = pod["metadata"]["uid"]
    row = system.sql(
        "SELECT a.node, a.id, x.device_uuid FROM allocations a JOIN allocation_devices x"
        f" ON x.allocation_id = a.id WHERE a.pod_uid = '{uid}' AND a.ended_at IS NULL"
    )
    node, allocation, card = row.split("|")
    newest = system.sql("SELECT coalesce(max(id), 0) FROM drift_journal")
    return Room(system, pod, node, allocation, card, int(newest))


def wait_until_right(room: Room, case: Corruption) -> None:
    """Wait until it is repaired or shown."""

    def right() -> object:
        try:
            return case.right(room)
        except (AssertionError, httpx.TransportError, OSError):
            return None

    wait(right, f"{case.where}, {case.what}: {case.outcome}", timeout_s=WITHIN_S)
