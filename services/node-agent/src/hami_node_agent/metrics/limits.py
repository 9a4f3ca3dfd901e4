"""Metrics of limits as checked from outside; HAMi has none.

In: `LimitChecker.checked`. Bounded by the containers and cards of one node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from hamicommon.domain.granted_cards import LimitState
from hamicommon.domain.pod_ref import PodRef
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hami_node_agent.enforcement.checker import CheckResult
from hami_node_agent.enforcement.judgement import LimitKey
from hami_node_agent.metrics.collectors import ZONE

MIB = 1024 * 1024
_CONTAINER = ("namespace", "pod", "container", "device_uuid")


@dataclass(eq=False)
class LimitCollector:
    """Collect metrics of the last check at every scrape.

    `stale_s`: an older check is not shown.
    """

    checked: Callable[[], CheckResult]
    name_of: Callable[[str], PodRef | None]
    _: KW_ONLY
    stale_s: float
    clock: Callable[[], float] = time.monotonic

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; containers in their first grace period are left out."""
        checked, now_s = self.checked(), self.clock()
        if checked.looked_s is None or now_s - checked.looked_s > self.stale_s:
            checked = CheckResult()
        state = _family(
            "hami_vgpu_limit_state", "1 for the state of the container's limit", "state"
        )
        since = _family(
            "hami_vgpu_limit_state_since_timestamp_seconds", "When that state began (Unix time)"
        )
        held = _family(
            "hami_vgpu_driver_memory_used_bytes",
            "Memory that its processes hold on the card, as the driver reports it",
        )
        over = _family(
            "hami_vgpu_memory_over_grant_bytes",
            "Memory above the grant, contexts included",
        )
        for key, standing in checked.standings.items():
            if standing.state is None:
                continue
            labels = self._labels(key)
            state.add_metric([*labels, str(standing.state)], 1)
            since.add_metric(labels, time.time() - (now_s - standing.since_s))
            if (held_mib := standing.judgement.held_mib) is not None:
                held.add_metric(labels, held_mib * MIB)
                over.add_metric(labels, max(0, held_mib - standing.judgement.granted_mib) * MIB)
        yield from (state, since, held, over)
        yield self._enforcement(checked)
        yield from _of_cards(checked)

    def _enforcement(self, checked: CheckResult) -> Metric:
        """Yield all four states of each container, so that no series ends when a state changes."""
        worst: dict[tuple[str, str, str], LimitState] = {}
        for key, standing in checked.standings.items():
            if standing.state is not None:
                _, namespace, pod, container, _ = self._labels(key)
                before = worst.get((namespace, pod, container), standing.state)
                worst[namespace, pod, container] = max(
                    before, standing.state, key=lambda each: each.severity
                )
        family = GaugeMetricFamily(
            "hami_vgpu_enforcement_state",
            "1 for the worst state of the container's limits on its cards, 0 for the others",
            labels=[ZONE[0], "namespace", "pod", "container", "state"],
        )
        for names, state in sorted(worst.items()):
            for each in LimitState:
                family.add_metric([ZONE[1], *names, str(each)], each is state)
        return family

    def _labels(self, key: LimitKey) -> list[str]:
        pod = self.name_of(key.pod_uid)
        # Of a pod whose name is not known its uid is better than nothing.
        namespace, name = ("", key.pod_uid) if pod is None else (pod.namespace, pod.name)
        return [ZONE[1], namespace, name, key.container, key.card]


def _of_cards(checked: CheckResult) -> Iterator[Metric]:
    processes = GaugeMetricFamily(
        "hami_node_agent_card_processes",
        "Processes that the driver lists on the card, by owner: a container's, of an "
        "exempt namespace, of a pod that ended, the host's, or unresolved",
        labels=[ZONE[0], "device_uuid", "owner"],
    )
    memory = GaugeMetricFamily(
        "hami_node_agent_card_process_memory_bytes",
        "Memory that they use on the card",
        labels=[ZONE[0], "device_uuid", "owner"],
    )
    for card, totals in sorted(checked.totals.items()):
        for kind, count in sorted(totals.processes.items()):
            processes.add_metric([ZONE[1], card, str(kind)], count)
            memory.add_metric([ZONE[1], card, str(kind)], totals.held_mib[kind] * MIB)
    yield processes
    yield memory


def _family(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[ZONE[0], *_CONTAINER, *more])
