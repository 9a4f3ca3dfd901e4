"""Kueue's objects for the cards of a cluster, as JSON for `kubectl apply`.

A flavor is the nodes with one set of card models, by a label that no other node with cards has. Its
quotas are what these nodes register: slots, memory and cores of their cards, CPU and memory of the
host. Kueue multiplies memory and cores of a request by its cards (`transformations`), so a quota of
either is a sum over cards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hamicommon.admission.mistakes.queued_jobs import QUEUE_LABEL, total_of
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil, parse_milli
from hamicommon.k8s.types import Json
from hamicommon.kueue import CONTROLLER
from hamicommon.scaling.node_types import GROUP_LABELS, labels_of
from hamicommon.simulation.cluster import read_cluster
from hamicommon.vendors.interface.vendor import ResourceNames
from hamicommon.vendors.registry import Vendors

API = "kueue.x-k8s.io/v1beta2"
FLAVOR_LABELS = (
    "nvidia.com/gpu.product",
    *GROUP_LABELS,
    "node.kubernetes.io/instance-type",
)
"""Labels that may identify a node's cards; the first label that does is used."""
POLICY_NAME = "hami-queued-jobs"
CHECK_NAME = "fits-as-slices"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNames:
    """Names of the Kueue objects to create."""

    cluster_queue: str
    local_queue: str
    namespace: str


class Recipe(NamedTuple):
    """Configuration of Kueue, and Kueue objects to create."""

    configuration: Json
    """Part of Kueue's own Configuration, which is a file and no object of the API."""
    objects: list[Json]
    problems: tuple[str, ...]
    """Parts of the cluster that could not be read, one sentence each."""


def render_recipe(
    nodes: Sequence[Json],
    vendors: Vendors,
    names: QueueNames,
    *,
    labels: Sequence[str] = FLAVOR_LABELS,
    check: bool = False,
) -> Recipe:
    """Return the Kueue objects with which Kueue counts the cards of these nodes.

    `check`: the queue asks the scheduler whether a workload's slices are there, too.

    Raises: InvalidRequest when no node has cards, or no label distinguishes two models.
    """
    cluster = read_cluster(nodes, (), vendors)
    groups: defaultdict[str, list[Json]] = defaultdict(list)
    cards: dict[str, list[GpuDevice]] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        found = [state.usage.device for state in cluster.view.cards(NodeName(name))]
        if found:
            cards[name] = found
            groups[flavor_name(card.type for card in found)].append(node)
    if not groups:
        problems = "; ".join(cluster.problems)
        raise InvalidRequest(
            f"no node registers a card{f' ({problems})' if problems else ''}: is hami installed?"
        )
    resources = {
        vendor.name: vendor.resources
        for vendor in vendors
        if any(card.vendor == vendor.name for found in cards.values() for card in found)
    }
    covered = list(
        dict.fromkeys(name for each in resources.values() for name in _counted_resources(each))
    )
    order = [*covered, "cpu", "memory"]
    flavors, quotas = [], []
    for name, members in sorted(groups.items()):
        others = [node for other, group in groups.items() if other != name for node in group]
        flavors.append(
            {
                "apiVersion": API,
                "kind": "ResourceFlavor",
                "metadata": {"name": name},
                "spec": {"nodeLabels": _labels_of_flavor(name, members, others, labels)},
            }
        )
        held = [card for node in members for card in cards[node["metadata"]["name"]]]
        amounts = {**_card_quota(held, resources), **_host_quota(members)}
        quotas.append(
            {
                "name": name,
                "resources": [
                    {"name": each, "nominalQuota": str(amounts.get(each, 0))} for each in order
                ],
            }
        )
    queue: Json = {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": names.cluster_queue},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": order, "flavors": quotas}],
        },
    }
    checks = []
    if check:
        checks.append(
            {
                "apiVersion": API,
                "kind": "AdmissionCheck",
                "metadata": {"name": CHECK_NAME},
                "spec": {"controllerName": CONTROLLER},
            }
        )
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK_NAME}]}
    local = {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": names.local_queue, "namespace": names.namespace},
        "spec": {"clusterQueue": names.cluster_queue},
    }
    transformations = {each["input"]: each for one in resources.values() for each in _sums(one)}
    configuration: Json = {"resources": {"transformations": list(transformations.values())}}
    return Recipe(configuration, [*flavors, *checks, queue, local], cluster.problems)


def flavor_name(models: Iterable[str]) -> str:
    """Return the models as a valid object name: `nvidia-a100-sxm4-80gb`."""
    parts = (re.sub("[^a-z0-9]+", "-", model.lower()).strip("-") for model in sorted(set(models)))
    return "-and-".join(parts)[:200].rstrip("-")


def _labels_of_flavor(
    flavor: str, members: Sequence[Json], others: Sequence[Json], labels: Sequence[str]
) -> Mapping[str, str]:
    """Return a label that all members have and no other node; none if there are no other nodes."""
    for label in labels:
        values = {labels_of(node).get(label) for node in members}
        value = next(iter(values))
        if len(values) == 1 and value and all(labels_of(o).get(label) != value for o in others):
            return {label: value}
    if not others:
        return {}
    node = members[0]["metadata"]["name"]
    raise InvalidRequest(
        f"none of the labels {', '.join(labels)} is on all nodes of {flavor} and on no other node "
        f"with cards: label the nodes (kubectl label node {node} example.com/card={flavor[:63]}), "
        "or name the label with --node-label"
    )


def _counted_resources(names: ResourceNames) -> Iterator[str]:
    yield names.count
    yield from (total_of(each) for each in (names.memory, names.core) if each)


def _sums(names: ResourceNames) -> Iterator[Json]:
    for each in (names.memory, names.core):
        if each:
            yield {
                "input": each,
                "strategy": "Replace",
                "multiplyBy": names.count,
                "outputs": {total_of(each): "1"},
            }


def _card_quota(
    cards: Iterable[GpuDevice], resources: Mapping[str, ResourceNames]
) -> dict[str, int]:
    """Sum slots, memory and cores of the cards by resource, in the units of pods' requests."""
    sums: defaultdict[str, int] = defaultdict(int)
    for card in cards:
        names = resources[card.vendor]
        sums[names.count] += card.slots
        if names.memory:
            sums[total_of(names.memory)] += card.memory_mib // names.memory_factor
        if names.core:
            sums[total_of(names.core)] += card.core_percent
    return sums


def _host_quota(nodes: Iterable[Json]) -> dict[str, str]:
    """Sum the nodes' allocatable cpu and memory. Raises: InvalidRequest if a node states none."""
    cpu = memory = 0
    for node in nodes:
        given = (node.get("status") or {}).get("allocatable") or {}
        if not {"cpu", "memory"} <= given.keys():
            raise InvalidRequest(
                f"node {node['metadata']['name']} states no allocatable cpu and memory: "
                "use the output of kubectl get nodes -o json"
            )
        cpu += parse_milli(str(given["cpu"]))
        memory += parse_ceil(str(given["memory"])) // 2**20
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}


def render_policy(vendors: Vendors) -> list[Json]:
    """Return a ValidatingAdmissionPolicy and its binding, which refuse requests Kueue can't count.

    It looks at Jobs, JobSets and RayJobs when they come to a queue, and at no later change.
    """
    queued = f"has(object.metadata.labels) && '{QUEUE_LABEL}' in object.metadata.labels"
    before = f"has(oldObject.metadata.labels) && '{QUEUE_LABEL}' in oldObject.metadata.labels"
    ray = "object.spec.rayClusterSpec"
    templates = (
        "object.kind == 'Job' ? [object.spec.template] : object.kind == 'JobSet' ? "
        "object.spec.replicatedJobs.map(j, j.template.spec.template) : "
        f"!has({ray}) ? [] : [{ray}.headGroupSpec.template] + "
        f"(has({ray}.workerGroupSpecs) ? {ray}.workerGroupSpecs.map(g, g.template) : [])"
    )
    limits = (
        "variables.templates.map(t, (t.spec.containers + "
        "(has(t.spec.initContainers) ? t.spec.initContainers : []))"
        ".filter(c, has(c.resources) && has(c.resources.limits)).map(c, c.resources.limits))"
    )
    kinds = (("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"), ("ray.io", "rayjobs"))
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY_NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [resource],
                    }
                    for group, resource in kinds
                ]
            },
            "matchConditions": [
                {"name": "queued", "expression": queued},
                {"name": "was-not", "expression": f"oldObject == null || !({before})"},
            ],
            "variables": [
                {"name": "templates", "expression": templates},
                {"name": "limits", "expression": limits},
            ],
            "validations": [
                _validation(vendor.resources) for vendor in vendors if vendor.resources.memory
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY_NAME},
        "spec": {"policyName": POLICY_NAME, "validationActions": ["Deny"]},
    }
    return [policy, binding]


def _validation(names: ResourceNames) -> Json:
    ours = [each for each in (names.count, names.memory, names.memory_percent, names.core) if each]
    none = f"{ours}.all(r, !(r in l) || string(l[r]) == '0')"
    both = f"{[names.count, names.memory]}.all(r, r in l && string(l[r]) != '0')"
    return {
        "expression": f"variables.limits.all(each, each.all(l, {none} || {both}))",
        "message": (
            f"a Job of a queue names {names.count} and {names.memory} in each container with "
            "cards: Kueue counts the template as it is written"
        ),
    }
