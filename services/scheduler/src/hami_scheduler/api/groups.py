"""`GET /v1/groups/{namespace}/{name}`: why a group waits, and where its pods would go.

From the pods that the watch shows and the cards in memory, as they are now; nothing is assumed.
Earlier decisions are the ledger's, also those on a group that has no pod any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from hamicommon.domain.ids import PodUid
from hamicommon.errors import NotFound
from hamicommon.explain.groups import group_sentence
from hamicommon.explain.sentences import stock_of
from hamicommon.k8s.pod_groups import PodGroup, group_of
from hamicommon.k8s.types import Json
from hamicommon.placement.groups import GroupDecision

from hami_scheduler.api.explain import in_short
from hami_scheduler.placement.group_members import Assembly, GroupMembers
from hami_scheduler.placement.groups import GroupPlans
from hami_scheduler.ports.ledger import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplainer:
    """Explain groups; a standby replica can too, but knows of no assumption."""

    pods: Callable[[], Iterable[Json]]
    """Return all pods of the API server."""
    new_members: Callable[[], GroupMembers]
    plans: GroupPlans
    decisions: Callable[[PodUid], Awaitable[Sequence[Row]]]
    """Return the recorded decisions of a uid or a group's key, the newest first."""

    async def explain(self, namespace: str, name: str) -> Json:
        """Return why the group waits, and where its pods would be placed.

        Raises: NotFound when no pod names the group and nothing is recorded of it, Unavailable.
        """
        rows = await self.decisions(PodUid(f"group/{namespace}/{name}"))
        pods = [pod for pod in self.pods() if (group_of(pod) or ("", ""))[:2] == (namespace, name)]
        if pods:
            return {**await self._explain(pods), "decisions": list(map(in_short, rows))}
        if not rows:
            raise NotFound(
                f"no pod of group {namespace}/{name} exists, and no decision on it is recorded"
            )
        return {
            **_group_fields(PodGroup(namespace, name), []),
            "quorum": rows[0]["group_size"],
            "summary": "no pod of it exists any more",
            "decisions": list(map(in_short, rows)),
        }

    async def _explain(self, pods: list[Json]) -> Json:
        members = self.new_members()
        for pod in pods:
            members.pod_seen(pod)
        group = group_of(pods[0])
        assert group is not None
        members.start(
            [uid for pod in pods if self.plans.members.has_started(uid := pod["metadata"]["uid"])]
        )
        found = members.assembly(group)
        if found is None:
            return {
                **_group_fields(group, pods),
                "quorum": None,
                "summary": "its pods start one by one: no PodGroup and no annotation "
                "hami.io/group-min has how many start together",
            }
        decision = await self.plans.decision(found)
        return {
            **_group_fields(group, pods),
            "quorum": found.quorum,
            "present": found.present,
            "held_by": "kube-scheduler" if members.is_held_elsewhere(group) else "hami-scheduler",
            "fits": len(found.waiting) >= found.needed and decision.fits,
            "summary": self._summary(found, decision),
            "would_take": [
                {
                    "pod_name": each.request.name,
                    "node": placement.node,
                    "devices": [str(card.uuid) for card in placement.footprints()],
                }
                for each in found.waiting
                if (placement := decision.placements.get(each.request.uid)) is not None
            ],
            **self.plans.about(group),
        }

    def _summary(self, found: Assembly, decision: GroupDecision) -> str:
        if not found.needed:
            return f"all {found.quorum} that start together have started"
        if len(found.waiting) < found.needed:
            return f"{len(found.waiting)} of the {found.needed} pods that start together exist"
        view = self.plans.state.cluster
        stock = stock_of(usage.device for usages in view.frozen().usages for usage in usages)
        return group_sentence(decision, stock, candidates=len(view.nodes))


def _group_fields(group: PodGroup, pods: list[Json]) -> Json:
    return {
        "namespace": group.namespace,
        "group": group.name,
        "pods": [
            {"pod_name": pod["metadata"]["name"], "node": (pod.get("spec") or {}).get("nodeName")}
            for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"]))
        ],
    }
