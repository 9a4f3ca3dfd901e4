"""Find the installation's parts (`k8s/`, the chart) in a cluster, in the order of dependencies.

The workloads' status and the reasons of their pods are read; nothing is asked of the parts
themselves. Where the user may not look, a part is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hamicommon.admission.registration import CONFIGURATION_PATH, ca_bundle_problem
from hamicommon.errors import Forbidden, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json


class PartState(StrEnum):
    """State of one part."""

    WELL = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinding:
    """State of one part, as a line of the answer."""

    part: str
    state: PartState
    detail: str
    next_step: str = ""


def missing(part: str, detail: str, next_step: str = "") -> PartFinding:
    """Return a finding: the part is absent or does not work."""
    return PartFinding(part=part, state=PartState.MISSING, detail=detail, next_step=next_step)


def well(part: str, detail: str) -> PartFinding:
    """Return a finding: the part exists and works."""
    return PartFinding(part=part, state=PartState.WELL, detail=detail)


def unknown(part: str, detail: str, next_step: str = "") -> PartFinding:
    """Return a finding: the state is unknown, because this user may not read it."""
    return PartFinding(part=part, state=PartState.UNKNOWN, detail=detail, next_step=next_step)


def wrong(part: str, detail: str, next_step: str = "") -> PartFinding:
    """Return a finding: the part works, but a setting in it has no effect."""
    return PartFinding(part=part, state=PartState.WRONG, detail=detail, next_step=next_step)


NAMESPACE = "hami-system"
"""Namespace of the installation, unless a webhook registration names another."""
APPLY = "kubectl apply --kustomize k8s/base, or helm upgrade"
_KINDS = ("deployments", "statefulsets", "daemonsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledObjects:
    """Objects of an installation; a list is None if this user may not read it."""

    namespace: str
    present: bool
    registration: Json | None
    """Webhook registration; empty if this user may not read it."""
    workloads: Mapping[str, Json] | None
    pods: Sequence[Json] | None
    jobs: Sequence[Json] | None
    refusals: Mapping[str, str]
    """Reason why the API server refused pods, by name of the object that creates them."""
    services: frozenset[str] | None
    trusted: bool | None
    """Whether the CA certificate exists; None if this user may not read it."""

    @property
    def elsewhere(self) -> bool:
        """Whether our services run outside the cluster: the webhook is registered by an address."""
        hooks = (self.registration or {}).get("webhooks") or ()
        return not self.present and any("url" in hook["clientConfig"] for hook in hooks)


async def read(api: KubeApi) -> InstalledObjects:
    """Read the objects.

    Raises: Unavailable, Unauthorized (the API server does not know the user).
    """
    hidden: Json = {}
    registration = await _object(api, CONFIGURATION_PATH, hidden)
    namespace = _namespace_of(registration)
    place = f"/api/v1/namespaces/{namespace}"
    apps, batch = f"/apis/apps/v1/namespaces/{namespace}", f"/apis/batch/v1/namespaces/{namespace}"
    lists = [await _items(api, f"{apps}/{kind}") for kind in _KINDS]
    workloads = {item["metadata"]["name"]: item for items in lists for item in items or ()}
    services = await _items(api, f"{place}/services")
    authority = await _object(api, f"{place}/configmaps/hami-ca", hidden)
    return InstalledObjects(
        namespace=namespace,
        present=await _object(api, place, hidden) is not None,
        registration=registration,
        workloads=None if None in lists else workloads,
        pods=await _items(api, f"{place}/pods"),
        jobs=await _items(api, f"{batch}/jobs"),
        refusals={
            event["involvedObject"]["name"]: event.get("message", "")
            for event in await _items(api, f"{place}/events") or ()
            if event.get("reason") == "FailedCreate"
        },
        services=None if services is None else frozenset(s["metadata"]["name"] for s in services),
        trusted=None if authority is hidden else authority is not None,
    )


def findings(seen: InstalledObjects) -> list[PartFinding]:
    """Return a finding for each part, in the order of dependencies."""
    if not seen.present:
        return [missing("installation", f"namespace {seen.namespace} does not exist", APPLY)]
    return [
        _credentials(seen),
        _store(seen, "Postgres", "hami-postgres"),
        _store(seen, "Redis", "hami-redis"),
        _store(seen, "NATS", "hami-nats"),
        *_migrations(seen),
        workload(seen, "scheduler", "hami-scheduler"),
        _webhook(seen),
        _agents(seen),
        workload(seen, "metrics", "hami-metrics"),
    ]


def _credentials(seen: InstalledObjects) -> PartFinding:
    if seen.trusted is None:
        return unknown("credentials", "no permission to read ConfigMap hami-ca")
    if seen.trusted:
        return well("credentials", f"created by hami-bootstrap in {seen.namespace}")
    job = next(iter(_unfinished_jobs(seen, "hami-bootstrap")), None)
    if job is None:
        return missing(
            "credentials", "neither ConfigMap hami-ca nor Job hami-bootstrap found", APPLY
        )
    return missing(
        "credentials",
        f"Job {job} has not created them{_reason(seen, 'hami-bootstrap')}",
        _way_out(seen, "hami-bootstrap") or f"kubectl --namespace {seen.namespace} logs job/{job}",
    )


def _store(seen: InstalledObjects, part: str, name: str) -> PartFinding:
    own = seen.services is not None and name not in seen.services
    if own and seen.workloads is not None and name not in seen.workloads:
        return unknown(part, f"neither Service nor StatefulSet {name} found; a store of your own?")
    return workload(seen, part, name)


def _migrations(seen: InstalledObjects) -> list[PartFinding]:
    """Return findings about unfinished migrations; none if done, as their Jobs may be deleted."""
    return [
        missing(
            "migrations",
            f"Job {job} is not done{_reason(seen, 'hami-migrations')}",
            _way_out(seen, job) or f"kubectl --namespace {seen.namespace} logs job/{job}",
        )
        for job in _unfinished_jobs(seen, "hami-migrations")
        if "-post-" not in job
    ][:1]


def workload(seen: InstalledObjects, part: str, name: str) -> PartFinding:
    """Return whether all pods of a workload are ready, and if not, why."""
    if seen.workloads is None:
        return unknown(part, f"no permission to read the workloads of {seen.namespace}")
    found = seen.workloads.get(name)
    if found is None:
        return missing(part, f"{name} not found in {seen.namespace}", APPLY)
    lacking = not_ready(found)
    if lacking:
        return missing(part, f"{name}: {lacking}{_reason(seen, name)}", _step(seen, name))
    return well(part, f"{name} is ready in {seen.namespace}")


def not_ready(found: Json) -> str:
    """Return what a workload lacks; empty if nothing."""
    status, spec = found.get("status") or {}, found.get("spec") or {}
    wanted = status.get("desiredNumberScheduled", spec.get("replicas", 1))
    ready = status.get("readyReplicas", status.get("numberReady", 0)) or 0
    if "desiredNumberScheduled" not in status and wanted == 0:
        return "scaled to 0"
    return "" if ready >= wanted else f"{ready} of {wanted} pods are ready"


def _webhook(seen: InstalledObjects) -> PartFinding:
    if seen.registration is None:
        return missing("webhook", "MutatingWebhookConfiguration hami-webhook not found", APPLY)
    if not seen.registration:
        return unknown("webhook", "no permission to read the MutatingWebhookConfiguration")
    if problem := ca_bundle_problem(seen.registration):
        return missing(
            "webhook",
            f"the API server does not trust it: {problem}",
            f"kubectl --namespace {seen.namespace} get jobs",
        )
    return workload(seen, "webhook", "hami-webhook")


def _agents(seen: InstalledObjects) -> PartFinding:
    found = (seen.workloads or {}).get("hami-node-agent")
    status = (found or {}).get("status") or {}
    if found is not None and not status.get("desiredNumberScheduled"):
        wanted = found["spec"]["template"]["spec"].get("nodeSelector") or {}
        labels = " ".join(f"{key}={value}" for key, value in wanted.items())
        return missing(
            "agents", f"no node has the label {labels}", f"kubectl label node NODE {labels}"
        )
    return workload(seen, "agents", "hami-node-agent")


def _unfinished_jobs(seen: InstalledObjects, prefix: str) -> list[str]:
    """Return names of Jobs with this prefix that have not succeeded, the newest first."""
    jobs = sorted(
        (job for job in seen.jobs or () if job["metadata"]["name"].startswith(prefix)),
        key=lambda job: str(job["metadata"].get("creationTimestamp")),
        reverse=True,
    )
    return [
        job["metadata"]["name"] for job in jobs if not (job.get("status") or {}).get("succeeded")
    ]


def _pods(seen: InstalledObjects, name: str) -> list[Json]:
    """Return the pods of the workload of that name."""
    return [
        pod
        for pod in seen.pods or ()
        if (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == name
    ]


def _waiting(pod: Json) -> Json:
    """Return why the first waiting container waits; empty if none does."""
    status = pod.get("status") or {}
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        waiting: Json = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return waiting
    return {}


def _step(seen: InstalledObjects, name: str) -> str:
    """Return the command that helps or shows more, such as the log of a container that ended."""
    spec = ((seen.workloads or {}).get(name) or {}).get("spec") or {}
    if spec.get("replicas") == 0:
        kind = "statefulset" if "serviceName" in spec else "deployment"
        return f"kubectl --namespace {seen.namespace} scale --replicas=1 {kind}/{name}"
    if way_out := _way_out(seen, name):
        return way_out
    for pod in _pods(seen, name):
        if _waiting(pod).get("reason") == "CrashLoopBackOff":
            own = pod["metadata"]["name"]
            return f"kubectl --namespace {seen.namespace} logs --previous {own}"
    return f"kubectl --namespace {seen.namespace} describe pods -l app.kubernetes.io/name={name}"


def _way_out(seen: InstalledObjects, name: str) -> str:
    """Return what would let refused pods be created; empty if none was refused, or unknown."""
    refusal = _refusal(seen, name)
    if "PriorityClass" in refusal:
        return (
            "helm upgrade with --set global.priorityClassName=,devicePlugin.priorityClassName= "
            f"or a ResourceQuota of system priorities in {seen.namespace}"
        )
    if "PodSecurity" in refusal:
        label = "pod-security.kubernetes.io/enforce=privileged"
        return f"kubectl label --overwrite namespace {seen.namespace} {label}"
    return ""


def _reason(seen: InstalledObjects, name: str) -> str:
    """Return in parentheses why a pod of that name waits; empty if no pod shows it."""
    for pod in _pods(seen, name):
        waiting = _waiting(pod)
        if waiting:
            text = ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
            return f" ({text})"
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return f" (not scheduled: {condition.get('message')})"
    refusal = _refusal(seen, name)
    return f" (creating a pod is refused: {refusal})" if refusal else ""


def _refusal(seen: InstalledObjects, name: str) -> str:
    """Return why a workload has no pods; empty if unknown."""
    if _pods(seen, name):
        return ""
    # A Deployment's pods are made by its ReplicaSet, whose name begins with the Deployment's.
    return next(
        (text for maker, text in seen.refusals.items() if f"{maker}-".startswith(f"{name}-")), ""
    )


def _namespace_of(registration: Json | None) -> str:
    for hook in (registration or {}).get("webhooks") or ():
        service = hook["clientConfig"].get("service")
        if service:
            return str(service["namespace"])
    return NAMESPACE


async def _object(api: KubeApi, path: str, hidden: Json) -> Json | None:
    """Read an object; None if it does not exist, `hidden` if this user may not read it."""
    try:
        return await api.get(path)
    except NotFound:
        return None
    except Forbidden:
        return hidden


async def _items(api: KubeApi, path: str) -> list[Json] | None:
    """Read a list; None if this user may not read it."""
    try:
        return list((await api.get(path)).get("items") or ())
    except Forbidden:
        return None
    except NotFound:
        return []
