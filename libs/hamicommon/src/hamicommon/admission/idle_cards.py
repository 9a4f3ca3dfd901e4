"""Find out whether a pod could run if no card of the cluster were granted.

Input: the cards of every node (from the inventory stream, or from a dump). Output: one sentence
that states why no node can take a pod, and what would fit. The placement engine decides, so the
answer holds for every vendor and rule alike. `mutation.py` refuses or warns; a pod that only has to
wait until another pod ends is no concern of admission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from cachetools import LRUCache

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.counterfactuals import Circumstances, counterfactuals
from hamicommon.explain.sentences import CardStock as KindsOfCards
from hamicommon.explain.sentences import refusal_sentence, stock_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.vendor_policy import PairScores
from hamicommon.vendors.registry import Vendors

MAX_ANSWERS = 1024
"""Maximum number of requests whose answers are cached."""
MAX_CHANGES = 2
"""Maximum number of changes that a refusal suggests to the user."""
SEARCH_BUDGET_S = 0.1
"""Time limit for finding such changes: the user's `kubectl` waits for the answer."""
_WAITING = (", or wait until a pod ends", "; wait until a pod ends")
"""Endings of the scheduler's sentence that are cut off: no pod's end would help on idle cards."""


class IdleCards:
    """Cards of the cluster by node, all of them idle. Only one event loop may use it."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._view = ClusterView(vendors.rules)
        self._shapes: dict[NodeName, object] = {}
        self._of_uuid: dict[GpuUuid, NodeName] = {}
        self._answers: LRUCache[object, str] = LRUCache(MAX_ANSWERS)
        self._kinds: KindsOfCards | None = None

    @property
    def nodes(self) -> int:
        """Number of known nodes with cards."""
        return len(self._shapes)

    @property
    def cards(self) -> int:
        """Number of cards of the known nodes."""
        return len(self._of_uuid)

    def set_node(
        self,
        node: NodeName,
        devices: Sequence[GpuDevice],
        pair_scores: PairScores | None = None,
    ) -> None:
        """Replace the known cards of a node.

        An unhealthy card may be healthy when the scheduler gets the pod, so all count as healthy.
        """
        shape = (
            tuple(
                replace(card, uuid=GpuUuid(""), healthy=True, health_reason="") for card in devices
            ),
            bool(pair_scores),
        )
        uuids = [card.uuid for card in devices]
        if self._shapes.get(node) == shape and all(
            self._of_uuid.get(uuid) == node for uuid in uuids
        ):
            return
        self.remove_node(node)
        self._shapes[node] = shape
        self._of_uuid.update(dict.fromkeys(uuids, node))
        sound = (replace(card, healthy=True, health_reason="") for card in devices)
        states = [CardState(DeviceUsage(device=card), 0) for card in sound]
        self._view.set_node(node, states, pair_scores=pair_scores)

    def remove_node(self, node: NodeName) -> None:
        """Forget a node; without effect if the node is unknown."""
        self._answers.clear()
        self._kinds = None
        if self._shapes.pop(node, None) is None:
            return
        self._of_uuid = {uuid: where for uuid, where in self._of_uuid.items() if where != node}
        self._view.remove_node(node)

    def vendors_without_cards(self, request: PodRequest) -> frozenset[str]:
        """Return the vendors that the pod asks for and of which no card is known."""
        return vendors_of(request) - self._stock().types.keys()

    def never_fits_reason(self, request: PodRequest) -> str:
        """Return why no node could take the pod even if all cards were idle; empty if one could."""
        key = (
            tuple((c.role, c.requests) for c in request.containers),
            tuple(sorted((vendor, repr(chosen)) for vendor, chosen in request.selections.items())),
            request.policy,
        )
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._ask(request)
        return known

    def _ask(self, request: PodRequest) -> str:
        some = self._some_nodes(request)
        if decide(request, self._view, candidates=some).placement is not None:
            return ""
        every = tuple(self._shapes)
        decision = decide(request, self._view, candidates=every)
        if decision.refusal is None:
            return ""
        tables = decision.refusal.shortfalls.tables
        sentence = refusal_sentence(request, tables, self._stock(), candidates=len(every))
        for waiting in _WAITING:
            sentence = sentence.replace(waiting, "")
        about = Circumstances(names=resource_names(self._vendors))
        new_view = partial(ClusterView, self._vendors.rules)
        search = counterfactuals(
            request, self._view, some, about, new_view, budget_s=SEARCH_BUDGET_S
        )
        found = (change.text for change in search if change.kind != "unfinished")
        ways = " or ".join(islice(found, MAX_CHANGES))
        return f"{sentence} ({ways})" if ways else sentence

    def _some_nodes(self, request: PodRequest) -> tuple[NodeName, ...]:
        """Return enough nodes to answer for all: one of each kind, and those with named cards."""
        if any(chosen.avoid_uuids for chosen in request.selections.values()):
            return tuple(self._shapes)
        first_of = {shape: node for node, shape in reversed(self._shapes.items())}
        wanted = (
            self._of_uuid.get(GpuUuid(uuid))
            for chosen in request.selections.values()
            for uuid in chosen.use_uuids
        )
        return tuple(dict.fromkeys([*first_of.values(), *(node for node in wanted if node)]))

    def _stock(self) -> KindsOfCards:
        if self._kinds is None:
            self._kinds = stock_of(
                state.usage.device for node in self._shapes for state in self._view.cards(node)
            )
        return self._kinds


def vendors_of(request: PodRequest) -> frozenset[str]:
    """Return the vendors that the pod asks for."""
    return frozenset(asked.vendor for c in request.containers for asked in c.requests)


def resource_names(vendors: Vendors) -> Mapping[str, Mapping[str, str]]:
    """Return by vendor the resource names with which sentences call count, memory and cores."""
    return {
        vendor.name: {
            "count": vendor.resources.count,
            "memory": vendor.resources.memory or "memory",
            "percent": vendor.resources.memory_percent or "memory percentage",
            "core": vendor.resources.core or "cores",
        }
        for vendor in vendors
    }
