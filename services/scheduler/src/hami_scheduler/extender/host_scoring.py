"""Scores for pods without cards: kube-scheduler places them, and knows nothing of the cards.

A second entry among its extenders asks this for every pod. What the pod's CPU would strand of each
node's cards is answered as 0 to 10, and kube-scheduler adds it to its own scores. Nothing is
reserved, read from the ledger or waited for; who cannot ask continues without.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.host_scores import host_scores
from hamicommon.vendors.pod_request import PodRequests, host_request
from opentelemetry.trace import get_tracer

from hami_scheduler.extender.protocol import ExtenderArgs, names_of
from hami_scheduler.metrics import SchedulerInstruments

logger = logging.getLogger(__name__)
tracer = get_tracer(__name__)


@dataclass(frozen=True, kw_only=True)
class HostScoring:
    """The use case of /prioritize-without-cards."""

    cluster: ClusterView
    requests: PodRequests
    instruments: SchedulerInstruments

    def scores(self, args: ExtenderArgs) -> dict[NodeName, int]:
        """0..10 per node; all equal for a pod that gets cards, because those decide for it."""
        began = time.perf_counter()
        names = (args.node_names or ()) if args.nodes is None else names_of(args.nodes)
        with tracer.start_as_current_span("score-hosts") as span:
            if self._asks_for_cards(args.pod):
                outcome, found = "neutral", dict.fromkeys(names, 0)
            else:
                cpu_milli = host_request(args.pod).cpu_milli
                outcome, found = "scored", host_scores(cpu_milli, self.cluster, names)
            span.set_attributes({**_about(args.pod), "hami.candidates": len(names)})
            span.set_attribute("hami.outcome", outcome)
        self.instruments.host_score_seconds.labels(outcome).observe(time.perf_counter() - began)
        logger.debug("Scored hosts", extra={"outcome": outcome, "nodes": len(names)})
        return found

    def _asks_for_cards(self, pod: Json) -> bool:
        """Whether the pod asks for cards by limits, or has any ResourceClaims."""
        claims = (pod.get("spec") or {}).get("resourceClaims")
        return bool(claims) or self.requests.wants_devices(pod)


def _about(pod: Json) -> dict[str, str]:
    metadata = pod.get("metadata") or {}
    uid, namespace, name = (str(metadata.get(key, "")) for key in ("uid", "namespace", "name"))
    return telemetry.pod_attributes(uid=uid, namespace=clip(namespace), name=clip(name))
