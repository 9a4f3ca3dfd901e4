"""The one table of every resource served: its names, its schema, what may be asked of it.

Everything else reads from here: discovery, OpenAPI, paths, field selectors, printing, storage.
"""

from __future__ import annotations

from kubelocal.apiserver.schema.resource import Resource, rbac, review, webhooks, workload

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
    workload("DaemonSet", "V1DaemonSet", "ds"),
    workload("Deployment", "V1Deployment", "deploy"),
    workload("ReplicaSet", "V1ReplicaSet", "rs"),
    workload("StatefulSet", "V1StatefulSet", "sts"),
    review("authentication.k8s.io", "TokenReview"),
    review("authorization.k8s.io", "SubjectAccessReview"),
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
    webhooks("MutatingWebhookConfiguration"),
    webhooks("ValidatingWebhookConfiguration"),
    rbac("ClusterRole", namespaced=False),
    rbac("ClusterRoleBinding", namespaced=False),
    rbac("Role", namespaced=True),
    rbac("RoleBinding", namespaced=True),
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
