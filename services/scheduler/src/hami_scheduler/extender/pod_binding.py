"""Binding of a pod at the API server: `pods/binding`, reading it back, the label.

`bind.py` decides when. A lost answer is no answer: the pod itself shows what became of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.k8s.annotations import GRANT, annotations_of, binding_annotations
from hamicommon.k8s.types import Json

from hami_scheduler.ledger.state_machine import facts_of
from hami_scheduler.ports.cluster import PodApi

logger = logging.getLogger(__name__)


class AnswerUnknown(Unavailable):
    """The binding was sent and its outcome is unknown; the reaper will find out."""


@dataclass(frozen=True)
class PodBinding:
    """The pod of an allocation, at the API server."""

    pods: PodApi
    _: KW_ONLY
    sign: Callable[[Grant], str]

    async def post(self, allocation: Allocation, grant: Grant) -> bool:
        """Bind the pod, with its annotations and the signed grant.

        Returns False if it was found bound so, perhaps by another binder.

        Raises: NotFound, Conflict (bound elsewhere), Unavailable (it is not bound), AnswerUnknown.
        """
        annotations = self._annotations(allocation, grant)
        try:
            await self.pods.bind(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                node=allocation.node,
                annotations=annotations,
            )
        except (Conflict, Unavailable) as exc:
            # Conflict: bound already, perhaps by an attempt of ours whose answer was lost.
            pod = await self._read_back(
                allocation.namespace,
                allocation.pod_name,
                allocation.pod_uid,
                allocation.node,
                exc,
            )
            if annotations_of(pod).get(GRANT) != annotations[GRANT]:
                # By an attempt before this one: its token counts no more.
                await self._replace_annotations(allocation, annotations)
            return False
        return True

    async def post_plain(self, namespace: str, name: str, *, uid: PodUid, node: NodeName) -> None:
        """Bind a pod without a grant; a success if it is on the node by now.

        Raises: NotFound, Conflict (bound elsewhere), Unavailable (it is not bound), AnswerUnknown.
        """
        try:
            await self.pods.bind(namespace, name, uid=uid, node=node, annotations={})
        except (Conflict, Unavailable) as exc:
            await self._read_back(namespace, name, uid, node, exc)

    async def is_bound(self, allocation: Allocation) -> bool:
        """Whether this very pod is on the node. Raises: NotFound, Unavailable."""
        pod = await self._get(allocation.namespace, allocation.pod_name, allocation.pod_uid)
        return facts_of(pod).node == allocation.node

    async def label(self, allocation: Allocation, labels: Mapping[str, str]) -> None:
        """The label that HAMi's tools select by, when nobody waits for a decision any more.

        kube-scheduler takes a changed label of a pod that it has assumed for a reason to schedule
        it again, which fails with a warning on the pod (`skipPodUpdate` passes annotations over).
        """
        try:
            await self.pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations={},
                labels=labels,
            )
        except HamiError as exc:
            logger.info("Failed to label a pod", extra={"error": str(exc)})

    async def _replace_annotations(
        self, allocation: Allocation, annotations: Mapping[str, str]
    ) -> None:
        """Replace the annotations of a pod that was just read to be on the node.

        Whatever comes of it, and if the pod has passed now: it was bound, may run there, and its
        grant ends as that of any pod does.
        """
        try:
            await self.pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations=annotations,
                labels={},
            )
        except HamiError as exc:
            logger.warning(
                "Failed to replace the annotations of an earlier binding",
                extra={"pod_uid": allocation.pod_uid, "error": str(exc)},
            )

    def _annotations(self, allocation: Allocation, grant: Grant) -> dict[str, str]:
        """HAMi's keys and ours; they come with the binding, so no pod has them without its node."""
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=datetime.now(UTC)
        )
        return {**allocation.annotations, **common, GRANT: self.sign(grant)}

    async def _read_back(
        self, namespace: str, name: str, uid: PodUid, node: NodeName, error: HamiError
    ) -> Json:
        """Return the pod, after checking that it is on its node."""
        try:
            pod = await self._get(namespace, name, uid)
        except NotFound as exc:
            if isinstance(error, Unavailable):
                raise AnswerUnknown(
                    f"the response to the binding was lost, and {exc}; a report of its "
                    "node will show whether it runs"
                ) from error
            raise exc from error
        except Unavailable as exc:
            raise AnswerUnknown(
                f"the response to the binding was lost and the API server is unavailable: {exc}"
            ) from error
        if facts_of(pod).node != node:
            raise error
        return pod

    async def _get(self, namespace: str, name: str, uid: PodUid) -> Json:
        """This very pod. Raises: NotFound, also where the name is another pod's, Unavailable."""
        try:
            pod = await self.pods.get(namespace, name)
        except NotFound:
            pod = None
        if pod is None or facts_of(pod).uid != uid:
            raise NotFound(f"pod {namespace}/{name} is gone")
        return pod
