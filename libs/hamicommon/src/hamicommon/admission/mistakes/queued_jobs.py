"""Find requests in Jobs of a Kueue queue that Kueue would count wrongly.

Kueue reads the Job's template, before admission has seen a pod. It sums each resource over a pod's
containers and multiplies the sum of memory by the sum of cards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import ResourceNames
from hamicommon.vendors.registry import Vendors

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class PodSet(NamedTuple):
    """Pods that a Job makes from one of its templates."""

    name: str
    """Name of the pod set; empty if the Job has only one template."""
    template: Json


def is_queued(item: Json) -> bool:
    """Whether the object is a Job, a JobSet or a RayJob of a queue."""
    labels = _part(item, "metadata", "labels")
    return item.get("kind") in _POD_SETS and QUEUE_LABEL in labels


def find_miscounts(item: Json, vendors: Vendors) -> tuple[str, ...]:
    """Return one sentence for each request that Kueue would not count as it is granted."""
    found = []
    for pods in _POD_SETS[item["kind"]](_part(item, "spec")):
        where = f"{pods.name}: " if pods.name else ""
        for vendor in vendors:
            if vendor.resources.memory:
                found += [where + each for each in _of_pods(pods.template, vendor.resources)]
    # Two vendors may share a resource.
    return tuple(dict.fromkeys(found))


def _of_pods(template: Json, names: ResourceNames) -> Iterator[str]:
    ours = (names.count, names.memory, names.memory_percent, names.core)
    counted: list[tuple[int, int]] = []
    for role, container in containers_of(template):
        asked = {name for name in ours if name and amounts.asks(container, name)}
        if not asked:
            continue
        where = f"container {container.get('name', '')!r}"
        if names.count not in asked:
            yield (
                f"{where} names no {names.count}: the queue counts 0 of it; write {names.count}: 1"
            )
        if names.memory_percent in asked:
            yield (
                f"{where} asks for {names.memory_percent}, which no queue can count before a card "
                f"is chosen: the Job is never admitted; write {names.memory}"
            )
        elif names.memory not in asked:
            yield (
                f"{where} names no {names.memory}: it gets whole cards, of which the queue counts "
                f"no memory; write {names.memory}, or give whole cards a queue of their own"
            )
        elif role != "init":
            with suppress(InvalidRequest):
                cards = amounts.count(container, names.count) or 0
                counted.append((cards, amounts.memory(container, names.memory)))
    granted = sum(cards * memory for cards, memory in counted)
    sums = sum(cards for cards, _ in counted) * sum(memory for _, memory in counted)
    if len(counted) > 1 and sums > granted:
        yield (
            f"{len(counted)} containers ask for cards: the queue counts {sums} "
            f"{total_of(names.memory)} for a pod that is granted {granted}"
        )


def total_of(resource: str) -> str:
    """Return the resource that Kueue's quotas count, such as `nvidia.com/total-gpumem`.

    Kueue's own page on HAMi uses these names.
    """
    domain, _, local = resource.partition("/")
    return f"{domain}/total-{local}"


def _of_job(spec: Json) -> list[PodSet]:
    return [PodSet("", _part(spec, "template"))]


def _of_job_set(spec: Json) -> list[PodSet]:
    return [
        PodSet(str(job.get("name", "")), _part(job, "template", "spec", "template"))
        for job in _objects(spec.get("replicatedJobs"))
    ]


def _of_ray_job(spec: Json) -> list[PodSet]:
    cluster = _part(spec, "rayClusterSpec")
    return [
        PodSet("head", _part(cluster, "headGroupSpec", "template")),
        *(
            PodSet(str(group.get("groupName", "")), _part(group, "template"))
            for group in _objects(cluster.get("workerGroupSpecs"))
        ),
    ]


_POD_SETS = {"Job": _of_job, "JobSet": _of_job_set, "RayJob": _of_ray_job}


def _part(item: Json, *path: str) -> Json:
    """Return the object at this path of the Job; empty if the user wrote none."""
    found: Any = item
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _objects(listed: object) -> list[Json]:
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
