"""The scheduler's side of the bus for the tests: announces grants, answers snapshots, hears."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hamicommon import events
from hamicommon.bus.client import Bus, Deliver, Message, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant, GrantedContainer, GrantedShare
from hamicommon.settings import NatsSettings

from tests.integration.node_agent.machine import CARDS, NODE
from tests.waiting import eventually


def share(card: int = 0, memory_mib: int = 4096, core_percent: int = 30) -> GrantedShare:
    return GrantedShare(
        uuid=CARDS[card], vendor="NVIDIA", memory_mib=memory_mib, core_percent=core_percent
    )


def container(
    *shares: GrantedShare, name: str = "main", index: int = 0, role: Any = "app"
) -> GrantedContainer:
    return GrantedContainer(index=index, name=name, role=role, shares=shares)


def grant(
    pod: str,
    *containers: GrantedContainer,
    token: int = 1,
    traceparent: str = "",
    answered: bool = False,
) -> Grant:
    return Grant(
        answered=answered,
        allocation_id=f"allocation-of-{pod}",
        pod_uid=pod,
        namespace="default",
        pod_name=f"name-of-{pod}",
        node=NODE,
        token=token,
        containers=containers or (container(share()),),
        traceparent=traceparent,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
    )


class Control:
    """A scheduler's part for one node."""

    def __init__(self, bus: Bus, url: str) -> None:
        self.bus = bus
        self.url = url
        self.live: dict[str, events.GrantState] = {}
        """Grants in the snapshot, by pod uid."""
        self.answers_snapshots = True
        self.complete = True
        """False: the ledger could not be read when it was asked."""
        self.reports: list[Any] = []
        self.inventories: list[events.Inventory] = []
        self.usages: list[events.Usage] = []
        self.agent_state: Path | None = None
        self._markers = 0

    async def announce(self, *grants: Grant) -> None:
        """Announce grants, as the ledger has them a second after their pods were bound."""
        for item in grants:
            self.live[item.pod_uid] = events.GrantState(grant=item, state="bound")
            await self.bus.publish(
                events.grants_subject(NODE),
                events.GrantAnnounced(grant=item),
                message_id=f"{item.allocation_id}:{item.token}",
            )

    def keep(self, item: Grant, state: str) -> None:
        """Known to the ledger, but not announced."""
        self.live[item.pod_uid] = events.GrantState(grant=item, state=state)

    async def withdraw(self, item: Grant) -> None:
        self.live.pop(item.pod_uid)
        await self.bus.publish(
            events.grants_subject(NODE),
            events.GrantWithdrawn(
                allocation_id=item.allocation_id,
                pod_uid=item.pod_uid,
                node=NODE,
                token=item.token,
                reason="test",
            ),
            message_id=f"{item.allocation_id}:{item.token}:withdrawn",
        )

    async def until_all_is_consumed(self) -> None:
        """Waits until the agent has handled every announcement that was published.

        They are handled in order, and the token of the last one is in the agent's state file.
        """
        assert self.agent_state is not None
        self._markers += 1
        uid = f"marker-{self._markers}"
        await self.bus.publish(
            events.grants_subject(NODE),
            events.GrantWithdrawn(
                allocation_id=uid, pod_uid=uid, node=NODE, token=1, reason="marker"
            ),
            message_id=uid,
        )
        file = self.agent_state
        await eventually(lambda: file.exists() and f'"{uid}"' in file.read_text(), uid)

    def reports_of(self, kind: str) -> list[Any]:
        return [report for report in self.reports if report.kind == kind]

    async def snapshot(self, subject: str, data: bytes) -> events.GrantSnapshot:
        if not self.answers_snapshots:
            raise Unavailable("the ledger is away")
        return events.GrantSnapshot(
            node=NODE,
            complete=self.complete,
            taken_at=datetime.now(UTC),
            grants=tuple(self.live.values()),
        )

    async def hear(self) -> None:
        async def on_report(message: Message) -> None:
            self.reports.append(events.REPORT.validate_json(message.data))

        async def on_inventory(message: Message) -> None:
            self.inventories.append(events.Inventory.model_validate_json(message.data))

        async def on_usage(message: Message) -> None:
            self.usages.append(events.Usage.model_validate_json(message.data))

        async with asyncio.TaskGroup() as tasks:
            for stream, subject, handle in (
                (events.REPORTS_STREAM, events.reports_subject(NODE), on_report),
                (events.INVENTORY_STREAM, events.inventory_subject(NODE), on_inventory),
                (events.USAGE_STREAM, events.usage_subject(NODE), on_usage),
            ):
                what = Subscription(
                    stream=stream, subject=subject, consumer="test", deliver=Deliver.ALL
                )
                tasks.create_task(self.bus.consume(what, handle))
            subject = events.snapshot_subject(NODE)
            tasks.create_task(self.bus.serve(subject, "scheduler", self.snapshot))


@asynccontextmanager
async def open_control(nats_url: str) -> AsyncIterator[Control]:
    async with open_bus(NatsSettings(url=nats_url), SCHEDULER_USER, owns_streams=True) as bus:
        control = Control(bus, nats_url)
        hearing = asyncio.create_task(control.hear())
        try:
            yield control
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
