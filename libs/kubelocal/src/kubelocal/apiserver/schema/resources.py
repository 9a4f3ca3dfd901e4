"""The one table of every resource served: its names, its schema, what may be asked of it.

Everything else reads from here: discovery, OpenAPI, paths, field selectors, printing, storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_POD_FIELDS = {
    "spec.nodeName": "",
    "spec.restartPolicy": "",
    "spec.schedulerName": "",
    "spec.serviceAccountName": "",
    "status.phase": "",
    "status.podIP": "",
    "status.nominatedNodeName": "",
}
_EVENT_FIELDS = {
    f"involvedObject.{name}": ""
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
} | {"reason": "", "reportingComponent": "", "source": "", "type": ""}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    """One row of the table.

    `schema` names the definition in `schema`; `fields` are the field-selector labels beyond the
    metadata ones, with the value of an absent field; `storage` is the plural and group that it is
    stored under (events have two faces and one store); `generation`: a change of spec counts it up.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    singular: str = ""
    kind: str
    schema: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    storage: str = ""
    generation: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    stored: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def store_key(self) -> str:
        """The name of the collection in the store."""
        return self.storage or (f"{self.group}/{self.plural}" if self.group else self.plural)

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def field_labels(self) -> frozenset[str]:
        """Every label that a field selector may name."""
        names = {"metadata.name", *self.fields}
        if self.namespaced:
            names.add("metadata.namespace")
        return frozenset(names)


def _workload(kind: str, schema: str, short: str) -> Resource:
    return Resource(
        group="apps",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=schema,
        short_names=(short,),
        categories=("all",),
        subresources=("status",),
        generation=True,
    )


def _rbac(kind: str, namespaced: bool) -> Resource:
    return Resource(
        group="rbac.authorization.k8s.io",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=namespaced,
        create_on_update=True,
    )


def _webhooks(kind: str) -> Resource:
    return Resource(
        group="admissionregistration.k8s.io",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    )


def _review(group: str, kind: str) -> Resource:
    return Resource(
        group=group,
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=False,
        stored=False,
    )


RESOURCES: tuple[Resource, ...] = (
    Resource(
        plural="bindings", singular="binding", kind="Binding", schema="V1Binding", stored=False
    ),
    Resource(
        plural="configmaps",
        singular="configmap",
        kind="ConfigMap",
        schema="V1ConfigMap",
        short_names=("cm",),
    ),
    Resource(
        plural="endpoints",
        singular="endpoints",
        kind="Endpoints",
        schema="V1Endpoints",
        short_names=("ep",),
        create_on_update=True,
    ),
    Resource(
        plural="events",
        singular="event",
        kind="Event",
        schema="CoreV1Event",
        short_names=("ev",),
        fields=_EVENT_FIELDS,
        create_on_update=True,
    ),
    Resource(
        plural="namespaces",
        singular="namespace",
        kind="Namespace",
        schema="V1Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
        fields={"status.phase": ""},
    ),
    Resource(
        plural="nodes",
        singular="node",
        kind="Node",
        schema="V1Node",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        fields={"spec.unschedulable": "false"},
    ),
    Resource(
        plural="persistentvolumeclaims",
        singular="persistentvolumeclaim",
        kind="PersistentVolumeClaim",
        schema="V1PersistentVolumeClaim",
        short_names=("pvc",),
        subresources=("status",),
        returns_deleted=True,
    ),
    Resource(
        plural="persistentvolumes",
        singular="persistentvolume",
        kind="PersistentVolume",
        schema="V1PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
        returns_deleted=True,
    ),
    Resource(
        plural="pods",
        singular="pod",
        kind="Pod",
        schema="V1Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("status", "binding", "eviction", "ephemeralcontainers"),
        fields=_POD_FIELDS,
        returns_deleted=True,
    ),
    Resource(
        plural="resourcequotas",
        singular="resourcequota",
        kind="ResourceQuota",
        schema="V1ResourceQuota",
        short_names=("quota",),
        subresources=("status",),
        returns_deleted=True,
    ),
    Resource(
        plural="secrets",
        singular="secret",
        kind="Secret",
        schema="V1Secret",
        fields={"type": ""},
    ),
    Resource(
        plural="serviceaccounts",
        singular="serviceaccount",
        kind="ServiceAccount",
        schema="V1ServiceAccount",
        short_names=("sa",),
        returns_deleted=True,
    ),
    Resource(
        plural="services",
        singular="service",
        kind="Service",
        schema="V1Service",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
        create_on_update=True,
    ),
    _workload("DaemonSet", "V1DaemonSet", "ds"),
    _workload("Deployment", "V1Deployment", "deploy"),
    _workload("ReplicaSet", "V1ReplicaSet", "rs"),
    _workload("StatefulSet", "V1StatefulSet", "sts"),
    _review("authentication.k8s.io", "TokenReview"),
    _review("authorization.k8s.io", "SubjectAccessReview"),
    Resource(
        group="batch",
        plural="jobs",
        singular="job",
        kind="Job",
        schema="V1Job",
        categories=("all",),
        subresources=("status",),
        fields={"status.successful": "0"},
        generation=True,
    ),
    Resource(
        group="coordination.k8s.io",
        plural="leases",
        singular="lease",
        kind="Lease",
        schema="V1Lease",
        unconditional_update=False,
        create_on_update=True,
    ),
    Resource(
        group="events.k8s.io",
        plural="events",
        singular="event",
        kind="Event",
        schema="EventsV1Event",
        short_names=("ev",),
        fields=_EVENT_FIELDS,
        storage="events",
        create_on_update=True,
    ),
    Resource(
        group="scheduling.k8s.io",
        plural="priorityclasses",
        singular="priorityclass",
        kind="PriorityClass",
        schema="V1PriorityClass",
        namespaced=False,
        short_names=("pc",),
    ),
    _webhooks("MutatingWebhookConfiguration"),
    _webhooks("ValidatingWebhookConfiguration"),
    _rbac("ClusterRole", namespaced=False),
    _rbac("ClusterRoleBinding", namespaced=False),
    _rbac("Role", namespaced=True),
    _rbac("RoleBinding", namespaced=True),
)

BY_PATH = {(each.group, each.version, each.plural): each for each in RESOURCES}
BY_KIND = {(each.api_version, each.kind): each for each in RESOURCES}
# Collections in the store; of two faces of one collection the older one decides its shape.
STORED = {each.store_key: each for each in reversed(RESOURCES) if each.stored}

PODS = BY_PATH["", "v1", "pods"]
NODES = BY_PATH["", "v1", "nodes"]
NAMESPACES = BY_PATH["", "v1", "namespaces"]
EVENTS = BY_PATH["", "v1", "events"]
QUOTAS = BY_PATH["", "v1", "resourcequotas"]
PRIORITY_CLASSES = BY_PATH["scheduling.k8s.io", "v1", "priorityclasses"]
MUTATING_WEBHOOKS = BY_PATH["admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"]
TOKEN_REVIEWS = BY_PATH["authentication.k8s.io", "v1", "tokenreviews"]
SUBJECT_ACCESS_REVIEWS = BY_PATH["authorization.k8s.io", "v1", "subjectaccessreviews"]
VALIDATING_WEBHOOKS = BY_PATH[
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"
]
