"""Table of all served resources: names, schema, and verbs.

Everything else reads from here: discovery, OpenAPI, paths, field selectors, printing, storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = "v1"
_APPS = "apps"
_WEBHOOKS = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    """Row of the table.

    `definition` names the schema where it is not `V1<kind>`; `fields` are the field-selector labels
    beyond the metadata ones, with the value of an absent field; `generation`: a change of spec
    counts it up.
    """

    kind: str
    group: str = ""
    plural: str
    namespaced: bool = True
    short_name: str = ""
    in_all: bool = False
    subresources: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    definition: str = ""
    generation: bool = False
    stored: bool = True

    @property
    def api_version(self) -> str:
        """Value of `apiVersion` of its objects."""
        return f"{self.group}/{VERSION}" if self.group else VERSION

    @property
    def schema(self) -> str:
        """Name of its definition in `fields`."""
        return self.definition or f"V1{self.kind}"

    @property
    def store_key(self) -> str:
        """Name of the collection in the store."""
        return f"{self.group}/{self.plural}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Whether it has the subresource `status`."""
        return "status" in self.subresources

    def field_labels(self) -> frozenset[str]:
        """Labels that a field selector may use."""
        names = {"metadata.name", *self.fields}
        if self.namespaced:
            names.add("metadata.namespace")
        return frozenset(names)


_POD_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    *("status.phase", "status.podIP", "status.nominatedNodeName"),
)
_EVENT_FIELDS = (
    *("involvedObject.kind", "involvedObject.namespace", "involvedObject.name"),
    *("involvedObject.uid", "involvedObject.fieldPath", "involvedObject.apiVersion"),
    *("involvedObject.resourceVersion", "reason", "reportingComponent", "source", "type"),
)


def _workload(kind: str, short: str, group: str = _APPS) -> Resource:
    """Return the row of a controller of pods."""
    return Resource(
        kind=kind,
        group=group,
        plural=f"{kind.lower()}s",
        short_name=short,
        in_all=True,
        subresources=("status",),
        generation=True,
    )


def _webhooks(kind: str) -> Resource:
    """Return the row of a configuration of webhooks."""
    return Resource(
        kind=kind, group=_WEBHOOKS, plural=f"{kind.lower()}s", namespaced=False, generation=True
    )


PODS = Resource(
    kind="Pod",
    plural="pods",
    short_name="po",
    in_all=True,
    subresources=("status", "binding", "eviction", "ephemeralcontainers"),
    fields=dict.fromkeys(_POD_FIELDS, ""),
)
NODES = Resource(
    kind="Node",
    plural="nodes",
    namespaced=False,
    short_name="no",
    subresources=("status",),
    fields={"spec.unschedulable": "false"},
)
NAMESPACES = Resource(
    kind="Namespace",
    plural="namespaces",
    namespaced=False,
    short_name="ns",
    subresources=("status", "finalize"),
    fields={"status.phase": ""},
)
BINDINGS = Resource(kind="Binding", plural="bindings", stored=False)
PRIORITY_CLASSES = Resource(
    kind="PriorityClass",
    group="scheduling.k8s.io",
    plural="priorityclasses",
    namespaced=False,
    short_name="pc",
)
MUTATING_WEBHOOKS = _webhooks("MutatingWebhookConfiguration")
VALIDATING_WEBHOOKS = _webhooks("ValidatingWebhookConfiguration")
RESOURCES: tuple[Resource, ...] = (
    BINDINGS,
    Resource(kind="ConfigMap", plural="configmaps", short_name="cm"),
    Resource(
        kind="Event",
        plural="events",
        short_name="ev",
        fields=dict.fromkeys(_EVENT_FIELDS, ""),
        definition="CoreV1Event",
    ),
    NAMESPACES,
    NODES,
    Resource(
        kind="PersistentVolumeClaim",
        plural="persistentvolumeclaims",
        short_name="pvc",
        subresources=("status",),
    ),
    PODS,
    Resource(
        kind="ResourceQuota", plural="resourcequotas", short_name="quota", subresources=("status",)
    ),
    Resource(kind="Secret", plural="secrets", fields={"type": ""}),
    Resource(kind="ServiceAccount", plural="serviceaccounts", short_name="sa"),
    Resource(
        kind="Service", plural="services", short_name="svc", in_all=True, subresources=("status",)
    ),
    _workload("DaemonSet", "ds"),
    _workload("Deployment", "deploy"),
    _workload("ReplicaSet", "rs"),
    _workload("StatefulSet", "sts"),
    _workload("Job", "", "batch"),
    Resource(kind="Lease", group="coordination.k8s.io", plural="leases"),
    PRIORITY_CLASSES,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)

BY_PATH = {(each.group, each.plural): each for each in RESOURCES}
BY_KIND = {(each.api_version, each.kind): each for each in RESOURCES}
STORED = {each.store_key: each for each in RESOURCES if each.stored}
