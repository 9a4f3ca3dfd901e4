"""Answer of the preemption planner as JSON of `POST /v1/preempt`, with its sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.preemption.holdings import Holder
from hamicommon.preemption.planner import Plan, Preview

HOST_NOTE = "the host's CPU and memory, selectors, taints and quotas are not looked at"


def as_json(
    found: Preview,
    *,
    view: ClusterView,
    priority: int,
    budgets: Mapping[str, int],
    now: datetime,
    may_preempt: bool,
    closed: Mapping[str, int],
) -> Json:
    """Return the planner's result as the response of `POST /v1/preempt`.

    Args:
        found: the planner's answer.
        view: the cards that it was given.
        priority: the pod's.
        budgets: evictions that each PodDisruptionBudget allows.
        now: for how long victims have run.
        may_preempt: False: the pod's preemptionPolicy is Never.
        closed: nodes that were left out, by the reason (`are cordoned`).
    """
    notes = [f"pods {reason}: {number} not considered" for reason, number in _most(found.left_out)]
    notes += [
        f"nodes that {why}: {number} not considered" for why, number in closed.items() if number
    ]
    if not found.is_complete:
        notes.append(
            f"{found.nodes_searched} of {found.nodes_possible} possible nodes were searched, those "
            "where the pod lacks the least first"
        )
    notes.append(HOST_NOTE)
    if not may_preempt and not found.fits_now:
        found = replace(found, plans=(), problem="the pod's preemptionPolicy is Never")
    return {
        "priority": priority,
        "fits_now": found.fits_now,
        "summary": summary_of(found, view),
        "plans": [_plan(each, view, budgets, now) for each in found.plans],
        "notes": notes,
    }


def _most(left_out: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return sorted(left_out.items(), key=lambda item: (-item[1], item[0]))


def summary_of(found: Preview, view: ClusterView) -> str:
    """Return one sentence on the best plan, or on why no plan exists."""
    if found.fits_now:
        return "fits now without preemption; if it waits, `hamictl explain` has the reason"
    if not found.plans:
        return f"no plan: {found.problem}"
    plan = found.plans[0]
    where = f"would go to {plan.placement.node}, {_cards(plan, view)}"
    if not plan.victims:
        return f"{where}, after the deletion of {_pods(len(plan.ending))}, which has begun"
    return f"{where}, if {_pods(len(plan.victims))} were preempted"


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _cards(plan: Plan, view: ClusterView) -> str:
    indexes = sorted(
        state.usage.device.index
        for state in view.cards(plan.placement.node)
        if state.usage.device.uuid in _uuids(plan)
    )
    return ("card " if len(indexes) == 1 else "cards ") + ", ".join(map(str, indexes))


def _uuids(plan: Plan) -> frozenset[str]:
    return frozenset(each.uuid for each in plan.placement.footprints())


def _plan(plan: Plan, view: ClusterView, budgets: Mapping[str, int], now: datetime) -> Json:
    index = {
        state.usage.device.uuid: state.usage.device.index
        for state in view.cards(plan.placement.node)
    }
    return {
        "node": plan.placement.node,
        "cards": [
            {"index": index[each.uuid], "uuid": each.uuid} for each in plan.placement.footprints()
        ],
        "victims": [_victim(each, index, budgets, now) for each in plan.victims],
        "ending": [each.pod for each in plan.ending],
    }


def _victim(
    holder: Holder, index: Mapping[GpuUuid, int], budgets: Mapping[str, int], now: datetime
) -> Json:
    age_s = None if holder.started_at is None else int((now - holder.started_at).total_seconds())
    return {
        "pod": holder.pod,
        "uid": holder.uid,
        "priority": holder.priority,
        "owner": holder.owner,
        "age_s": age_s,
        "held": [
            {
                "index": index.get(each.uuid),
                "uuid": each.uuid,
                "memory_mib": each.memory_mib,
                "core_percent": each.core_percent,
            }
            for each in holder.held
        ],
        "budgets": [{"name": name, "allowed": budgets.get(name, 0)} for name in holder.budgets],
    }
