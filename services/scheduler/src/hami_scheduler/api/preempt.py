"""`POST /v1/preempt`: the pods to evict so that a pod fits now; nothing is evicted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.preemption.answer import as_json
from hamicommon.preemption.holders import budget_room
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import Row
from hami_scheduler.preemption.planning import PreemptionPlans, PreemptionQuestion, find_plans


@dataclass(eq=False, kw_only=True)
class PreemptionPreviews:
    """Answer /v1/preempt."""

    plans: PreemptionPlans
    pod_api: PodApi
    answered: Callable[[PreemptionQuestion], Awaitable[bytes]]
    """Call `written_plans` in another process."""
    is_on: bool = True

    async def answer(self, body: object) -> bytes:
        """Return the best plans for the pod in the body, or for the waiting pod that it names.

        Raises: InvalidRequest, NotFound, Forbidden, Unavailable.
        """
        if not self.is_on:
            raise InvalidRequest(
                "previews of preemption are off here (HAMI_SCHEDULER_PREEMPTION_MODE=off)"
            )
        pod = await self._pod(body if isinstance(body, dict) else {})
        check_pod(pod)
        return await self.answered(await self.plans.question(pod))

    async def _pod(self, body: Json) -> Json:
        """Return the pod in the body, or the pod of the cluster that the body names."""
        pod, namespace, name = body.get("pod"), body.get("namespace"), body.get("name")
        if isinstance(pod, dict):
            return pod
        if not (isinstance(namespace, str) and isinstance(name, str) and namespace and name):
            raise InvalidRequest('expected {"pod": Pod}, or {"namespace": ..., "name": ...}')
        try:
            found = await self.pod_api.get(namespace, name)
        except NotFound:
            raise NotFound(f"pod {namespace}/{name} does not exist") from None
        node = (found.get("spec") or {}).get("nodeName")
        if node:
            raise InvalidRequest(f"pod {namespace}/{name} is on node {node} already")
        return found


def written_plans(
    question: PreemptionQuestion,
    view: ClusterView,
    rows: Sequence[Row],
    vendors: Vendors,
    defaults: Policy,
) -> bytes:
    """Search plans, and return them as JSON. Raises: InvalidRequest if the pod requests no card."""
    metadata = question.pod.get("metadata") or {}
    about = {"name": metadata.get("name"), "namespace": metadata.get("namespace") or "default"}
    answer = as_json(
        find_plans(question, view, rows, vendors, defaults),
        view=view,
        priority=question.wish.priority,
        budgets=budget_room(question.budgets),
        now=datetime.now(UTC),
        may_preempt=question.wish.may_preempt,
        closed={why: len(nodes) for why, nodes in question.closed.items()},
    )
    return orjson.dumps(about | answer)
