"""Messages, annotations, objects and files with wrong values."""

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats

from tests.faults.corruptions.corruption import (
    Corruption,
    Outcome,
    Room,
    answers,
    both,
    expect_journal_line,
)

MAX64 = 2**63 - 1
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def now() -> str:
    """Return the time as payloads have it."""
    return datetime.now(UTC).isoformat()


def inventory(room: Room, **changes: Any) -> bytes:
    """A report of the node's running agent."""
    agent = room.sql("SELECT agent_id FROM nodes WHERE name = '{node}'")
    body = {"node": room.node, "agent_id": agent, "sequence": 1, "observed_at": now()}
    return json.dumps({**body, "devices": [], **changes}).encode()


def usage(room: Room, **changes: Any) -> bytes:
    """A report of use by another run of the agent."""
    body = {"node": room.node, "agent_id": "garbage", "sequence": 1, "sampled_at": now()}
    return json.dumps({**body, "devices": [], "containers": [], **changes}).encode()


def report(room: Room, **changes: Any) -> bytes:
    """The node answers that the pod is gone."""
    token = int(room.sql("SELECT token FROM allocations WHERE id = '{id}'"))
    body = {"node": room.node, "report_id": now(), "allocation_id": room.allocation}
    more = {"pod_uid": room.uid, "token": token, "at": now(), "kind": "gone"}
    return json.dumps({**body, **more, **changes}).encode()


def expect_dead_letter(subject: str) -> Callable[[Room], object]:
    """Return a check that a dead letter of this subject is kept."""
    return lambda room: [
        letter for letter in room.dead_letters() if letter["subject"] == f"{subject}.{room.node}"
    ]


def unread(subject: str, what: str, body: Callable[[Room], bytes]) -> Corruption:
    """A message that can't be read."""
    return Corruption(
        where=f"`{subject}.<node>`",
        what=what,
        outcome=Outcome.SHOWN,
        answer="a dead letter with the reason (`hamictl dead-letters`)",
        lie=lambda room: room.publish(f"{subject}.{room.node}", body(room)),
        right=expect_dead_letter(subject),
    )


INVENTORY, REPORTS = "hami.inventory.v1", "hami.reports.v1"
USAGE, LIMITS = "hami.usage.v1", "hami.limits.v1"
CARD = {"uuid": "GPU-garbage", "index": 0, "type": "A100"}
MESSAGES = (
    unread(INVENTORY, "no JSON", lambda room: b"garbage"),
    unread(INVENTORY, "version 99", lambda room: inventory(room, version=99)),
    unread(INVENTORY, "sequence 2^63 - 1", lambda room: inventory(room, sequence=MAX64)),
    unread(INVENTORY, "sequence -1", lambda room: inventory(room, sequence=-1)),
    unread(INVENTORY, "another node", lambda room: inventory(room, node=room.other_node)),
    unread(REPORTS, "no JSON", lambda room: b"garbage"),
    unread(REPORTS, "token 2^63 - 1", lambda room: report(room, token=MAX64)),
    unread(REPORTS, "another node", lambda room: report(room, node=room.other_node)),
    unread(USAGE, "no JSON", lambda room: b"garbage"),
    unread(USAGE, "sequence 2^63 - 1", lambda room: usage(room, sequence=MAX64)),
    unread(
        USAGE,
        "-1 bytes",
        lambda room: usage(room, devices=[{**CARD, "memory_used_bytes": -1}]),
    ),
    unread(
        USAGE,
        "2^62 bytes",
        lambda room: usage(room, devices=[{**CARD, "memory_used_bytes": 2**62}]),
    ),
    unread(
        USAGE,
        "1e300 percent",
        lambda room: usage(room, devices=[{**CARD, "gpu_percent": 1e300}]),
    ),
    unread(LIMITS, "no JSON", lambda room: b"garbage"),
    Corruption(
        where=f"`{INVENTORY}.<node>`",
        what="no cards, sequence 2^53 - 1",
        outcome=Outcome.REPAIRED,
        answer="three reports of the agent are left out, then its number is believed (drift "
        "`inventory-number`) and its cards are back",
        lie=lambda room: room.publish(
            f"{INVENTORY}.{room.node}", inventory(room, sequence=2**53 - 1)
        ),
        right=both(
            expect_journal_line("inventory-number"),
            answers("SELECT count(*) FROM devices WHERE node = '{node}' AND present", "4"),
        ),
    ),
    Corruption(
        where=f"`{REPORTS}.<node>`",
        what="a pod that runs is gone",
        outcome=Outcome.WITHOUT_EFFECT,
        answer="the API server is asked whether the pod is there, and it is",
        lie=lambda room: room.publish(f"{REPORTS}.{room.node}", report(room)),
    ),
    Corruption(
        where="`hami.grants.v1.<node>`",
        what="a grant of a pod that runs is withdrawn",
        outcome=Outcome.WITHOUT_EFFECT,
        answer="the agent keeps what runs, and has the grant again with its next comparison (15 s)",
        lie=lambda room: room.publish(
            f"hami.grants.v1.{room.node}",
            json.dumps(
                {
                    "kind": "withdrawn",
                    "allocation_id": room.allocation,
                    "pod_uid": room.uid,
                    "node": room.node,
                    "token": int(room.sql("SELECT token FROM allocations WHERE id = '{id}'")),
                    "reason": "garbage",
                }
            ).encode(),
        ),
    ),
)


def delete_stream(name: str) -> Callable[[Room], None]:
    """Return a deletion as a thief of the bus's rights would make it."""

    def lie(room: Room) -> None:
        async def delete() -> None:
            client = await nats.connect(str(room.system.described["nats_url"]))
            await client.jetstream().delete_stream(name)
            await client.close()

        asyncio.run(delete())

    return lie


def stream_is_there(name: str) -> Callable[[Room], object]:
    """Return a check that the stream has been made again."""

    def right(room: Room) -> bool:
        async def look() -> bool:
            client = await nats.connect(str(room.system.described["nats_url"]))
            try:
                await client.jetstream().stream_info(name)
            except nats.js.errors.NotFoundError:
                return False
            finally:
                await client.close()
            return True

        return asyncio.run(look())

    return right


STREAMS = tuple(
    Corruption(
        where=f"stream `{name}`",
        what="deleted",
        outcome=Outcome.REPAIRED,
        answer="made again within 20 s; facts wait in the outbox and on the nodes",
        lie=delete_stream(name),
        right=stream_is_there(name),
    )
    for name in ("HAMI_USAGE", "HAMI_INVENTORY", "HAMI_REPORTS", "HAMI_GRANTS")
)


def pod_path(room: Room) -> str:
    """The pod at the API server."""
    return f"/api/v1/namespaces/default/pods/{room.name}"


def on_pod(
    key: str, value: str | None, outcome: Outcome, answer: str, kind: str = ""
) -> Corruption:
    """An annotation of the pod that runs."""
    return Corruption(
        where=f"pod, `{key}`",
        what="removed" if value is None else value,
        outcome=outcome,
        answer=answer,
        lie=lambda room: room.annotate(pod_path(room), {key: value}),
        right=expect_journal_line(kind) if kind else lambda room: True,
    )


MIRROR = "the mirror is written again from the ledger (drift `annotations-differ`)"
UNSIGNED = "only what we signed for this pod counts; the ledger has the grant"
ANNOTATIONS = (
    *(
        on_pod(
            "hami.io/vgpu-devices-allocated", value, Outcome.REPAIRED, MIRROR, "annotations-differ"
        )
        for value in ("garbage", None)
    ),
    *(
        on_pod("hami.io/grant", value, Outcome.WITHOUT_EFFECT, UNSIGNED)
        for value in ("garbage", None)
    ),
    on_pod("hami.io/vgpu-node", "garbage", Outcome.WITHOUT_EFFECT, "kept for people"),
    on_pod("hami.io/bind-phase", "failed", Outcome.WITHOUT_EFFECT, "our agent's report counts"),
)


def cordon(room: Room) -> None:
    """Cordon a card that does not exist."""
    path = f"/api/v1/nodes/{room.node}"
    room.annotate(path, {"hami.io/device-cordon": "GPU-garbage"})
    room.undone.append(lambda: room.annotate(path, {"hami.io/device-cordon": None}))


def garbage_authority(room: Room) -> None:
    """Write garbage as the authority of the webhook's registration."""
    [name] = [
        item["metadata"]["name"]
        for item in room.system.get(WEBHOOK)["items"]
        if "hami" in item["metadata"]["name"]
    ]
    path = f"{WEBHOOK}/{name}"
    before = room.system.get(path)["webhooks"]
    garbage = base64.b64encode(b"garbage").decode()
    wrong = [
        {**each, "clientConfig": {**each["clientConfig"], "caBundle": garbage}} for each in before
    ]

    def write(webhooks: list[Any]) -> None:
        answer = room.system.api.patch(
            path,
            json={"webhooks": webhooks},
            headers={"content-type": "application/merge-patch+json"},
        )
        assert answer.status_code == 200, answer.text

    write(wrong)
    room.undone.append(lambda: write(before))


def doctor_names(part: str, text: str) -> Callable[[Room], bool]:
    """Return a check that the line of this part has the text."""
    return lambda room: any(
        each["part"] == part and text in each["detail"] for each in room.doctor()
    )


OBJECTS = (
    Corruption(
        where="Node, `hami.io/device-cordon`",
        what="no card",
        outcome=Outcome.SHOWN,
        answer="closes none; drift `cordon-without-card`, and `hamictl doctor` has it",
        lie=cordon,
        right=expect_journal_line("cordon-without-card"),
    ),
    Corruption(
        where="MutatingWebhookConfiguration, `caBundle`",
        what="garbage",
        outcome=Outcome.SHOWN,
        answer="pods with slices are refused (`failurePolicy: Fail`); `hamictl doctor` and "
        "`hamictl lint --live` name it",
        lie=garbage_authority,
        right=doctor_names("webhook", "holds no certificates"),
        pods_come=False,
    ),
)


RESTORED = "the agent writes it again (5 s) and names it (`hami_node_agent_restored_files_total`)"


def limits_file(room: Room) -> Path:
    """Return the limits file of the pod's container."""
    marked = f"device {room.card} memory_bytes {1024 * 1024 * 1024} core_percent 5"
    [found] = [
        path
        for path in room.agent_folder.glob("limits/*/limits")
        if path.is_file() and marked in path.read_text()
    ]
    return found


def make_damaged_file(what: str, text: str | None) -> Corruption:
    """The limits file of a container that runs."""

    def lie(room: Room) -> None:
        path = limits_file(room)
        room.kept = str(path)
        room.before = path.read_text()
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    def right(room: Room) -> bool:
        # The feedback loop adds and removes its own lines.
        path = Path(room.kept)
        lines = {line for line in room.before.splitlines() if line.startswith(("device", "policy"))}
        return path.is_file() and lines <= set(path.read_text().splitlines())

    return Corruption(
        where="node, `limits/<nonce>/limits`",
        what=what,
        outcome=Outcome.REPAIRED,
        answer=RESTORED,
        lie=lie,
        right=right,
    )


def make_installed_file(name: str, what: str, text: bytes | None) -> Corruption:
    """A file by which containers get the library."""

    def lie(room: Room) -> None:
        [path] = [
            each
            for each in (room.system.folder / "nodes" / room.node).rglob(name)
            if each.parent.name == "vgpu" and each.is_file()
        ]
        room.kept = str(path)
        room.content = path.read_bytes()
        # Another file in its place: the one that is mapped is not written to.
        path.unlink()
        if text is not None:
            path.write_bytes(text)

    def right(room: Room) -> bool:
        path = Path(room.kept)
        return path.is_file() and path.read_bytes() == room.content

    return Corruption(
        where=f"node, `{name}`",
        what=what,
        outcome=Outcome.REPAIRED,
        answer=RESTORED,
        lie=lie,
        right=right,
    )


FILES = (
    make_damaged_file("empty", ""),
    make_damaged_file("without limits", "hami-limits 1\npolicy disable\noversubscribe 1\n"),
    make_damaged_file("deleted", None),
    make_installed_file("ld.so.preload", "empty", b""),
    make_installed_file("ld.so.preload", "deleted", None),
    make_installed_file("libvgpu.so.*", "garbage", b"garbage"),
    Corruption(
        where="node, `state.json`",
        what="garbage",
        outcome=Outcome.WITHOUT_EFFECT,
        answer="the agent has it in memory and writes it whole with the next change",
        lie=lambda room: (room.agent_folder / "state.json").write_text("garbage"),
    ),
)

CASES: tuple[Corruption, ...] = (*FILES, *ANNOTATIONS, *OBJECTS, *MESSAGES, *STREAMS)
