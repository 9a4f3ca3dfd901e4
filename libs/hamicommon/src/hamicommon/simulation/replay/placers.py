"""The product's engine as a replay's placer: a view of the trace's cluster, one pod at a time.

Host CPU and memory are kube-scheduler's filter, and so they are here; cards are the engine's own.
Where a trace has no card memory, cards have more than anybody asks for and every slice
takes 1 MiB, so that cores alone decide. Slots never run out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    HostRequest,
    PodRequest,
    Policy,
    Selection,
)
from hamicommon.placement.choice.ordering import FRAGMENTATION
from hamicommon.placement.cluster.arrivals import Mix, PodShape, shape_of
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import best_of
from hamicommon.placement.host_scores import host_costs, host_levels
from hamicommon.placement.node_costs import NodeCosts
from hamicommon.simulation.replay.trace import Held, Trace, TraceNode, TracePod

EnginePolicy = Literal["binpack", "spread", "fragmentation"]

_VENDOR = "NVIDIA"
_NO_MEMORY_MIB = 1_000_000
"""Of a card whose memory is not in the trace: each slice takes 1 MiB."""
_SLOTS = 1000
"""Of every card; a card of 100 percent has at most 100 slices with cores."""


class EnginePlacer:
    """The trace's cluster under a policy of the engine."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[TraceNode],
        policy: Policy,
        *,
        mix: Mix | None = None,
        host_in_score: bool = True,
    ) -> None:
        """`mix`: given, in place of the one that is learned from arrivals."""
        self._policy = policy
        self._host_in_score = host_in_score
        self.view = ClusterView(trace.rules)
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._memory_mib = {n.model: n.card_memory_mib or _NO_MEMORY_MIB for n in nodes}
        self._used: dict[GpuUuid, list[int]] = {}
        self._details: dict[GpuUuid, list[Mapping[str, Any]]] = {}
        self._versions: dict[GpuUuid, int] = {}
        for node in self._nodes:
            states = [CardState(usage, 1) for usage in self._cards(node)]
            self.view.set_node(node.name, states, pair_scores=node.pair_scores)
            if host_in_score:
                self.view.set_free_cpu(node.name, node.cpu_milli)
        self._free_cpu = np.array([node.cpu_milli for node in self._nodes])
        self._free_memory = np.array([node.memory_mib for node in self._nodes])
        self._free_core = [[100] * node.cards for node in self._nodes]
        self._places = {
            card.device.uuid: (row, place)
            for row, node in enumerate(self._nodes)
            for place, card in enumerate(self._cards(node))
        }
        self._requests: dict[object, PodRequest] = {}
        if mix is not None:
            self.view.usual.give(mix)

    def place(self, pod: TracePod) -> bool:
        """Puts the pod on a node; False when it fits nowhere."""
        return self.take(pod) is not None

    def take(self, pod: TracePod, row: int | None = None) -> Held | None:
        """Puts it on a node, or only on this one of the nodes in the order of their names.

        With `row` the pod waits, and has been seen to arrive before.
        """
        request = self._request(pod)
        if row is None:
            self._saw(request)
            can = (self._free_cpu >= pod.cpu_milli) & (self._free_memory >= pod.memory_mib)
            rows = np.flatnonzero(can)
        elif self._might_hold(pod, row):
            rows = np.array([row])
        else:
            return None
        if not len(rows):
            return None
        if not pod.cards:
            return self._hold(pod, Held(self._best_host(pod, rows)))
        placement = best_of(request, self.view, rows)
        if placement is None:
            return None
        details = [
            (share.uuid, share.detail)
            for container in placement.containers
            for share in container.shares
            if share.detail
        ]
        taken = placement.footprints()
        return self._hold(pod, Held(self._row_of(placement.node), taken, details))

    def _saw(self, request: PodRequest) -> None:
        shape = shape_of(request)
        if shape is not None:
            self.view.usual.saw(shape)

    def _might_hold(self, pod: TracePod, row: int) -> bool:
        """Whether the host has room, and cards enough have the cores: else nobody need ask."""
        if self._free_cpu[row] < pod.cpu_milli or self._free_memory[row] < pod.memory_mib:
            return False
        if pod.request is not None:
            return True
        cores = -(-pod.card_milli // 10)
        return sum(left >= cores for left in self._free_core[row]) >= pod.cards

    def give_back(self, pod: TracePod, held: Held) -> None:
        """The pod has ended."""
        self._count(held, -1)
        self._host(held.row, -pod.cpu_milli, -pod.memory_mib)

    def stranded_milli(self) -> float | None:
        """By the measure of the policy `fragmentation`, on all nodes."""
        if self._policy.node != FRAGMENTATION:
            return None
        return self.view.memory.kept(NodeCosts).stranded_milli(self.view)

    def host_levels(self, cpu_milli: int, rows: Int) -> Int:
        """(rows,): 0..10, what kube-scheduler is answered for a pod without cards."""
        return host_levels(host_costs(cpu_milli, self.view, rows))

    def _best_host(self, pod: TracePod, rows: Int) -> int:
        """For a pod without cards: the policy looks at what its CPU means for the cards."""
        if self._policy.node == FRAGMENTATION:
            scores = host_costs(pod.cpu_milli, self.view, rows)
        else:
            scores = self.view.scores(rows)
            scores = -scores if self._policy.node == "spread" else scores
        # Rows are in the order of names.
        return int(rows[scores.argmax()])

    def _row_of(self, node: NodeName) -> int:
        [row], _ = self.view.rows_of([node])
        return int(row)

    def _hold(self, pod: TracePod, held: Held) -> Held:
        self._host(held.row, pod.cpu_milli, pod.memory_mib)
        self._count(held, 1)
        return held

    def _host(self, row: int, cpu_milli: int, memory_mib: int) -> None:
        self._free_cpu[row] -= cpu_milli
        self._free_memory[row] -= memory_mib
        if self._host_in_score:
            self.view.set_free_cpu(self._nodes[row].name, int(self._free_cpu[row]))

    def _count(self, held: Held, sign: int) -> None:
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
            self._versions[uuid] = version = self._versions.get(uuid, 1) + 1
            self.view.apply(
                uuid,
                slots=used[0],
                memory_mib=used[1],
                core_percent=used[2],
                version=version,
                holdings=tuple(self._details[uuid]) if uuid in detailed else None,
            )

    def _cards(self, node: TraceNode) -> list[DeviceUsage]:
        if node.devices:
            return [DeviceUsage(device=device) for device in node.devices]
        return [
            DeviceUsage(
                device=GpuDevice(
                    uuid=GpuUuid(f"{node.name}/{index}"),
                    index=index,
                    vendor=_VENDOR,
                    type=node.model,
                    slots=_SLOTS,
                    memory_mib=self._memory_mib[node.model],
                    core_percent=100,
                )
            )
            for index in range(node.cards)
        ]

    def _request(self, pod: TracePod) -> PodRequest:
        found = self._requests.get(pod.shape)
        if found is None:
            found = self._requests[pod.shape] = request_of(pod, self._policy)
        return found


def request_of(pod: TracePod, policy: Policy) -> PodRequest:
    """What the engine is asked for a pod of a trace."""
    if pod.request is not None:
        return replace(pod.request, policy=policy)
    requests: tuple[DeviceRequest, ...] = ()
    if pod.cards:
        wanted = DeviceRequest(
            vendor=_VENDOR,
            count=pod.cards,
            memory_mib=pod.card_memory_mib or 1,
            core_percent=-(-pod.card_milli // 10),
        )
        requests = (wanted,)
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
    """The mix of the whole trace, known before the first pod arrives."""
    shapes = (shape_of(request_of(pod, Policy())) for pod in trace.pods)
    found: list[PodShape] = [shape for shape in shapes if shape is not None]
    return Mix.of(found)
