"""The kubelet's device manager: which device ids a container gets, and what it keeps of them."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from hami_node_agent.devices.replica_ids import replicas_of
from hami_node_agent.grants.ports import Holding, KeptAnswer
from hamicommon.errors import Unavailable

from tests.simulation.cluster.agent import Agent, Cards, Disk


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the device checkpoint."""

    pod_uid: str
    container: str
    ids: frozenset[str]
    nonce: str
    cards: tuple[Any, ...]

    def holding(self) -> Holding:
        """The entry as the agent reads it."""
        return Holding(
            pod_uid=self.pod_uid,
            container=self.container,
            device_ids=self.ids,
            answer=KeptAnswer(
                nonce=self.nonce,
                cards=self.cards,
                cache_dir=f"{self.pod_uid}_{self.container}",
            ),
        )


class DeviceManager:
    """Device manager of one node; `orderly`: it takes what the agent prefers, and asks once."""

    def __init__(
        self,
        *,
        rng: random.Random,
        cards: Cards,
        disk: Disk,
        note: Callable[[str], None],
        orderly: bool,
    ) -> None:
        self._rng, self._cards, self._disk = rng, cards, disk
        self._note, self._orderly = note, orderly
        self.entries: list[Entry] = []

    def of(self, pod_uid: str, container: str) -> Entry | None:
        """Return the entry of a container."""
        found = (e for e in self.entries if (e.pod_uid, e.container) == (pod_uid, container))
        return next(found, None)

    def keep_only(self, alive: Collection[str]) -> None:
        """A dead pod's ids stay until the next admission, which begins with this."""
        self.entries = [entry for entry in self.entries if entry.pod_uid in alive]

    async def give(
        self, pod_uid: str, container: str, wanted: int, reusable: set[str], agent: Agent | None
    ) -> Entry:
        """Allocate, which names neither pod nor container; `reusable`: of its init containers.

        Raises: HamiError, ConnectionError.
        """
        ids = self._choose(wanted, reusable, agent)
        nonce = await self._allocate(ids, agent)
        cards = tuple(share.uuid for share in self._disk.limits.get(nonce, ()))
        entry = Entry(pod_uid, container, ids, nonce, cards)
        self.entries.append(entry)
        return entry

    def _choose(self, wanted: int, reusable: set[str], agent: Agent | None) -> frozenset[str]:
        used = {one for entry in self.entries for one in entry.ids} - reusable
        free = [
            str(replica)
            for card in self._cards.devices()
            if card.healthy
            for replica in replicas_of(card.uuid, card.slots)
            if str(replica) not in used
        ]
        if agent is None or len(free) < wanted:
            raise Unavailable(f"no {wanted} devices are left")
        first = [one for one in free if one in reusable]
        preferred = list(agent.prefer(free, wanted)) if self._orderly else []
        self._rng.shuffle(free)
        chosen = list(dict.fromkeys([*first, *preferred, *free]))[:wanted]
        return frozenset(chosen)

    async def _allocate(self, ids: frozenset[str], agent: Agent | None) -> str:
        if agent is None or agent.plugin.reported_at is None:
            raise Unavailable("no such plugin")
        nonce = await agent.allocate(ids)
        if not self._orderly and self._rng.random() < 0.02:
            self._note("asks twice")
            nonce = await agent.allocate(ids)
        return nonce
