"""The nodes that a pod with claims is placed on: those that publish led cards and let it in, less
those that it did not come to a while ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.dra.devices import DRIVER
from hamicommon.k8s.informer import Key
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.dra.nodes import admits, led_nodes
from hami_scheduler.ledger.state_machine import facts_of

AVOID_S, AVOID_MOST_S = 60.0, 960.0
"""How long a node is left out for a pod that did not come to it; doubled each time."""


@dataclass(slots=True)
class _Missed:
    times: int = 0
    until: dict[NodeName, float] = field(default_factory=dict)


class Candidates:
    """By the informers of nodes and ResourceSlices."""

    def __init__(
        self,
        *,
        slices: Mapping[Key, Json],
        nodes: Mapping[Key, Json],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slices = slices
        self._nodes = nodes
        self._clock = clock
        self._missed: dict[PodUid, _Missed] = {}

    def of(self, pod: JsonMapping) -> list[NodeName]:
        """For a pod that is on a node already, that one."""
        facts, now = facts_of(pod), self._clock()
        led = led_nodes(self._slices.values())
        if facts.node is not None:
            return [facts.node] if facts.node in led else []
        missed = self._missed.get(facts.uid, _Missed()).until
        found = []
        for name in map(NodeName, led):
            node = self._nodes.get(("", name))
            if missed.get(name, now) <= now and node is not None and admits(node, pod):
                found.append(name)
        return found

    def pool(self, node: NodeName) -> str:
        """The name of its cards' pool."""
        return led_nodes(self._slices.values()).get(node, str(node))

    def has_allocated(self, claim: JsonMapping) -> bool:
        """Whether what is allocated to the claim is of cards that the ledger allocates."""
        pools = set(led_nodes(self._slices.values()).values())
        results = claim["status"]["allocation"]["devices"]["results"]
        return all(r["pool"] in pools for r in results if r["driver"] == DRIVER)

    def miss(self, uid: PodUid, node: NodeName) -> float:
        """The pod did not come to the node; until when it is left out, by the clock."""
        missed = self._missed.setdefault(uid, _Missed())
        until = self._clock() + min(AVOID_S * float(2**missed.times), AVOID_MOST_S)
        missed.times += 1
        missed.until[node] = until
        return until

    def keep(self, uids: Collection[PodUid]) -> None:
        """Forgets all pods but these."""
        self._missed = {uid: each for uid, each in self._missed.items() if uid in uids}
