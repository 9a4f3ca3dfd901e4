"""Run a trace's pods through the product's engine, on a view of the trace's cards.

Host CPU and memory are filtered as by kube-scheduler; cards are the engine's own. If a trace has no
card memory, cards have more than any pod requests and every slice takes 1 MiB, so that only cores
decide. Slots never run out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    HostRequest,
    PodRequest,
    Policy,
    Selection,
)
from hamicommon.placement.cluster.arrivals import Mix, shape_of
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import best_of
from hamicommon.placement.host_scores import host_costs, host_levels
from hamicommon.placement.node_policies import FRAGMENTATION, fragmentation

from hamireplay.trace import HeldAmounts, Trace, TraceNode, TracePod

_VENDOR = "NVIDIA"
_NO_MEMORY_MIB = 1_000_000
"""Memory of cards whose memory the trace lacks, so that it never runs out."""
_SLOTS = 1000
"""Slots of every card, so that they never run out."""


class EngineCluster:
    """Cluster of a trace under a policy of the engine."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[TraceNode],
        policy: Policy,
        *,
        mix: Mix | None = None,
        host_in_score: bool = True,
    ) -> None:
        """Fill a view with the nodes; `mix` replaces the one learned from arrivals."""
        self._policy = policy
        self._host_in_score = host_in_score
        self.view = ClusterView(trace.rules)
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._used: dict[GpuUuid, list[int]] = {}
        self._details: dict[GpuUuid, list[Mapping[str, Any]]] = {}
        self._places: dict[GpuUuid, tuple[int, int]] = {}
        """Row and place of each card."""
        memory_mib = {node.model: node.card_memory_mib or _NO_MEMORY_MIB for node in nodes}
        for row, node in enumerate(self._nodes):
            cards = node.devices or _cards_of(node, memory_mib[node.model])
            states = [CardState(DeviceUsage(device=card), 1) for card in cards]
            self.view.set_node(node.name, states, pair_scores=node.pair_scores)
            if host_in_score:
                self.view.set_free_cpu(node.name, node.cpu_milli)
            self._places |= {card.uuid: (row, place) for place, card in enumerate(cards)}
        self._free_cpu = np.array([node.cpu_milli for node in self._nodes])
        self._free_memory = np.array([node.memory_mib for node in self._nodes])
        self._free_core = [[100] * node.cards for node in self._nodes]
        self._versions = dict.fromkeys(self._places, 1)
        self._requests: dict[object, PodRequest] = {}
        if mix is not None:
            self.view.usual.give(mix)

    def take(self, pod: TracePod, row: int | None = None) -> HeldAmounts | None:
        """Place the pod as the engine does; see `ReplayCluster`."""
        request = self._request(pod)
        if row is None:
            shape = shape_of(request)
            if shape is not None:
                self.view.usual.add_arrival(shape)
            has_room = (self._free_cpu >= pod.cpu_milli) & (self._free_memory >= pod.memory_mib)
            rows = np.flatnonzero(has_room)
        elif self._might_hold(pod, row):
            rows = np.array([row])
        else:
            return None
        if not len(rows):
            return None
        if not pod.cards:
            held = HeldAmounts(self._best_host(pod, rows))
        else:
            placement = best_of(request, self.view, rows)
            if placement is None:
                return None
            shares = [share for each in placement.containers for share in each.shares]
            held = HeldAmounts(
                self._places[shares[0].uuid][0],
                placement.footprints(),
                [(share.uuid, share.detail) for share in shares if share.detail],
            )
        self._count(pod, held, 1)
        return held

    def give_back(self, pod: TracePod, held: HeldAmounts) -> None:
        """Free the cards and the host CPU of a pod that has ended."""
        self._count(pod, held, -1)

    def stranded_milli(self) -> float | None:
        """Return idle cards that no usual pod could use, as measured by `fragmentation`."""
        if self._policy.node != FRAGMENTATION:
            return None
        return fragmentation(self.view).stranded_milli(self.view)

    def host_levels(self, cpu_milli: int, rows: Int) -> Int:
        """Score hosts 0 to 10, as in our answer to kube-scheduler for a pod without cards."""
        return host_levels(host_costs(cpu_milli, self.view, rows))

    def _might_hold(self, pod: TracePod, row: int) -> bool:
        """Return whether the host has CPU, and cards with enough free cores, for the pod."""
        if self._free_cpu[row] < pod.cpu_milli or self._free_memory[row] < pod.memory_mib:
            return False
        if pod.request is not None:
            return True
        cores = -(-pod.card_milli // 10)
        return sum(left >= cores for left in self._free_core[row]) >= pod.cards

    def _best_host(self, pod: TracePod, rows: Int) -> int:
        """Return the best host for a pod without cards: by cards that its CPU strands, or usage."""
        if self._policy.node == FRAGMENTATION:
            scores = host_costs(pod.cpu_milli, self.view, rows)
        else:
            scores = self.view.scores(rows)
            scores = -scores if self._policy.node == "spread" else scores
        # Rows are in the order of names.
        return int(rows[scores.argmax()])

    def _count(self, pod: TracePod, held: HeldAmounts, sign: int) -> None:
        """Add what the pod takes of host and cards, or subtract it."""
        row = held.row
        self._free_cpu[row] -= sign * pod.cpu_milli
        self._free_memory[row] -= sign * pod.memory_mib
        if self._host_in_score:
            self.view.set_free_cpu(self._nodes[row].name, int(self._free_cpu[row]))
        for uuid, detail in held.details:
            known = self._details.setdefault(uuid, [])
            known.append(detail) if sign > 0 else known.remove(detail)
        detailed = {uuid for uuid, _ in held.details}
        for took in held.taken:
            uuid = took.uuid
            used = self._used.setdefault(uuid, [0, 0, 0])
            for at, amount in enumerate((took.slots, took.memory_mib, took.core_percent)):
                used[at] += sign * amount
            row, place = self._places[uuid]
            self._free_core[row][place] -= sign * took.core_percent
            self._versions[uuid] += 1
            self.view.apply(
                uuid,
                slots=used[0],
                memory_mib=used[1],
                core_percent=used[2],
                version=self._versions[uuid],
                holdings=tuple(self._details[uuid]) if uuid in detailed else None,
            )

    def _request(self, pod: TracePod) -> PodRequest:
        found = self._requests.get(pod.shape)
        if found is None:
            found = self._requests[pod.shape] = request_of(pod, self._policy)
        return found


def _cards_of(node: TraceNode, memory_mib: int) -> list[GpuDevice]:
    return [
        GpuDevice(
            uuid=GpuUuid(f"{node.name}/{index}"),
            index=index,
            vendor=_VENDOR,
            type=node.model,
            slots=_SLOTS,
            memory_mib=memory_mib,
            core_percent=100,
        )
        for index in range(node.cards)
    ]


def request_of(pod: TracePod, policy: Policy) -> PodRequest:
    """Convert a trace's pod to a request of the engine."""
    if pod.request is not None:
        return replace(pod.request, policy=policy)
    wanted = DeviceRequest(
        vendor=_VENDOR,
        count=pod.cards,
        memory_mib=pod.card_memory_mib or 1,
        core_percent=-(-pod.card_milli // 10),
    )
    requests = (wanted,) if pod.cards else ()
    return PodRequest(
        uid=PodUid(pod.name),
        namespace="default",
        name=pod.name,
        containers=(ContainerRequest(name="main", role="app", requests=requests),),
        selections={_VENDOR: Selection(use_types=pod.models)},
        policy=policy,
        host=HostRequest(cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib),
    )


def oracle(trace: Trace) -> Mix:
    """Return the mix of the whole trace, known before the first pod arrives."""
    shapes = (shape_of(request_of(pod, Policy())) for pod in trace.pods)
    return Mix.of(shape for shape in shapes if shape is not None)
