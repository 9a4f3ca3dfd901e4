"""Answer for pods that users are about to create, placing one after the other.

Each pod first goes through admission, as it would in the cluster, and each finds on the cards what
the pods before it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from hamicommon.admission.filling import fill_in
from hamicommon.admission.idle_cards import resource_names
from hamicommon.admission.mistakes.warnings import remarks
from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.explain.counterfactuals import SEARCH_BUDGET_S, Circumstances, counterfactuals
from hamicommon.explain.sentences import placed_sentence, refusal_sentence, stock_of
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod, metadata_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.node_scores import NodeScores
from hamicommon.simulation.cluster import Cluster
from hamicommon.simulation.verdict import SimulatedNode, SimulationResult, judge
from hamicommon.vendors.pod_request import DEFAULT_POLICY
from hamicommon.vendors.registry import Vendors


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """Answer for one pod."""

    name: str
    namespace: str
    verdict: SimulationResult
    warnings: tuple[str, ...] = ()
    """Warnings that the webhook would give."""
    summary: str = ""
    """Reason in one sentence why the pod would go to its node, or to none."""
    changes: tuple[str, ...] = ()
    """Changes of which each would let the refused pod fit."""

    def as_json(self) -> Json:
        """Return the answer as JSON, with annotations as our scheduler writes them."""
        return {
            "name": self.name,
            "namespace": self.namespace,
            "warnings": list(self.warnings),
            "summary": self.summary,
            "changes": list(self.changes),
        } | self.verdict.as_json()


def plan(
    pods: Iterable[Json],
    cluster: Cluster,
    vendors: Vendors,
    *,
    now: datetime,
    defaults: Policy = DEFAULT_POLICY,
) -> Iterator[PodPlan]:
    """Answer for the pods in order; the placement of each fills `cluster.view`."""
    for pod in pods:
        answer = plan_pod(pod, cluster, vendors, now=now, defaults=defaults)
        chosen = answer.verdict.chosen
        if chosen is not None:
            take(cluster, chosen, answer.verdict.nodes[chosen].containers)
        yield answer


def plan_pod(
    pod: Json,
    cluster: Cluster,
    vendors: Vendors,
    *,
    now: datetime,
    defaults: Policy = DEFAULT_POLICY,
    search_budget_s: float = SEARCH_BUDGET_S,
) -> PodPlan:
    """Answer for one pod without taking its cards.

    `search_budget_s`: for what would let it fit.
    """
    metadata = metadata_of(pod)
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    namespace = str(metadata.get("namespace") or "default")
    admitted = deepcopy(pod)
    try:
        check_pod(pod)
        wants, warnings = fill_in(admitted, vendors)
        if wants:
            warnings += remarks(admitted, vendors)
    except InvalidRequest as exc:
        denied = {node: SimulatedNode(fits=False) for node in cluster.nodes}
        return PodPlan(
            name=name,
            namespace=namespace,
            verdict=SimulationResult(nodes=denied, error=f"denied at admission: {exc}"),
        )
    verdict = judge(admitted, cluster, vendors, now=now, defaults=defaults)
    return PodPlan(
        name=name,
        namespace=namespace,
        verdict=verdict,
        warnings=warnings,
        summary=summary_of(verdict, cluster),
        changes=tuple(_changes(verdict, cluster, vendors, search_budget_s)),
    )


def summary_of(verdict: SimulationResult, cluster: Cluster) -> str:
    """Return the sentence that the scheduler would write in the pod's event.

    Empty for a mistake.
    """
    if verdict.unfiltered:
        return "it asks for no card, so only kube-scheduler decides"
    if verdict.request is None or verdict.refusal is None:
        return ""
    if verdict.chosen is not None:
        scores = {name: node.score for name, node in verdict.nodes.items() if node.fits}
        return placed_sentence(
            verdict.request,
            verdict.chosen,
            NodeScores.of(scores),
            candidates=len(verdict.nodes),
        )
    stock = stock_of(
        state.usage.device for node in cluster.nodes for state in cluster.view.cards(node)
    )
    tables = verdict.refusal.shortfalls.tables
    return refusal_sentence(verdict.request, tables, stock, candidates=len(verdict.nodes))


def _changes(
    verdict: SimulationResult, cluster: Cluster, vendors: Vendors, budget_s: float
) -> Iterator[str]:
    if verdict.request is None or verdict.unfiltered or verdict.chosen is not None:
        return
    about = Circumstances(holdings=cluster.by_pod, names=resource_names(vendors))
    new_view = partial(ClusterView, vendors.rules)
    for change in counterfactuals(
        verdict.request, cluster.view, cluster.nodes, about, new_view, budget_s=budget_s
    ):
        yield change.text


def take(cluster: Cluster, node: NodeName, containers: tuple[ContainerGrant, ...]) -> None:
    """Add a placement to the node's cards in the view of `cluster`."""
    taken = {footprint.uuid: footprint for footprint in footprints(containers)}
    shares = [share for container in containers for share in container.shares]
    states = []
    for usage, version in cluster.view.cards(node):
        footprint = taken.get(usage.device.uuid)
        after: DeviceUsage = usage
        if footprint is not None:
            after = replace(
                usage,
                used_slots=usage.used_slots + footprint.slots,
                used_memory_mib=usage.used_memory_mib + footprint.memory_mib,
                used_core_percent=usage.used_core_percent + footprint.core_percent,
                holdings=(
                    *usage.holdings,
                    *(s.detail for s in shares if s.uuid == footprint.uuid and s.detail),
                ),
            )
        states.append(CardState(after, version + 1))
    cluster.view.set_node(node, states, pair_scores=cluster.pair_scores.get(node))
