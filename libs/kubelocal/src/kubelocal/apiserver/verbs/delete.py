"""Delete and bind objects.

Deletion: preconditions, the grace of pods, finalizers, namespaces, and the answer. A pod on a node
is only marked; it goes when the kubelet deletes it with grace 0. Objects that the gone one owned
are collected by `controllers`. Binding a pod to a node is the last step of scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.k8s.types import Json

from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError, bad_request, conflict
from kubelocal.apiserver.schema.resources import BINDINGS, PODS
from kubelocal.apiserver.storage.objects import StoredObject
from kubelocal.apiserver.storage.store import ObjectStore, Transaction
from kubelocal.apiserver.verbs.create_update import commit, now_text
from kubelocal.apiserver.wire import bodies

_KEPT_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """DeleteOptions; `grace_s` None: the pod's own grace period."""

    grace_s: int | None = None
    uid: str = ""
    version: str = ""


def read_options(sent: Json, query_grace: str | None) -> Options:
    """Read options from the body, otherwise from the query. Raises: ApiError 400."""
    grace = sent.get("gracePeriodSeconds")
    if grace is None and query_grace is not None:
        if not query_grace.lstrip("-").isdigit():
            raise bad_request(f"gracePeriodSeconds: {query_grace!r} is not a whole number")
        grace = int(query_grace)
    conditions = sent.get("preconditions") or {}
    return Options(
        grace_s=grace,
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
    )


class Delete:
    """Delete objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def delete(
        self, target: ApiTarget, caller: Caller, options: Options
    ) -> tuple[StoredObject, bool]:
        """Delete an object or mark it; return its last state, and whether it is gone.

        Raises: ApiError.
        """
        gone = False

        def work(transaction: Transaction) -> StoredObject:
            nonlocal gone
            stored = transaction.get(target.collection, target.namespace, target.name)
            if stored is None:
                raise target.not_found()
            _check(target, stored, options)
            last = _delete_one(transaction, target, stored, options)
            gone = transaction.get(*stored.key) is None
            return last

        return await commit(self._store, caller, work), gone


def _check(target: ApiTarget, stored: StoredObject, options: Options) -> None:
    resource = target.resource
    names = (resource.kind, "", target.name)
    if options.uid and options.uid != stored.uid:
        raise conflict(
            *names,
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({stored.uid}). The object might have been deleted and then recreated",
        )
    if options.version and options.version != str(stored.version):
        raise conflict(
            *names,
            f"the ResourceVersion in the precondition ({options.version}) does not match the "
            f"ResourceVersion in record ({stored.version}). The object might have been modified",
        )
    if resource.kind == "Namespace" and target.name in _KEPT_NAMESPACES:
        raise target.forbidden("this namespace may not be deleted")


def _delete_one(
    transaction: Transaction, target: ApiTarget, stored: StoredObject, options: Options
) -> StoredObject:
    body = stored.load()
    meta = body["metadata"]
    if target.resource.kind == "Namespace":
        return _end_namespace(transaction, stored, body)
    grace_s = _grace_s(body, options) if target.resource.kind == "Pod" else 0
    if "deletionTimestamp" in meta and grace_s >= meta.get("deletionGracePeriodSeconds", 0) > 0:
        return stored  # a second delete may only shorten the first
    if meta.get("deletionGracePeriodSeconds") == grace_s == 0 and meta.get("finalizers"):
        return stored  # marked already; it waits for its finalizers
    meta["deletionTimestamp"] = _seconds_from_now(grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
    if grace_s > 0 or meta.get("finalizers"):
        return transaction.put(target.collection, body)
    if target.resource.kind != "Pod":
        return transaction.delete(target.collection, body)
    # The real server marks a pod before it removes it, and answers with the marked one.
    marked = transaction.put("pods", body)
    transaction.delete("pods", body)
    return marked


def _grace_s(pod: Json, options: Options) -> int:
    """Return the pod's grace period in seconds; 0 if no kubelet runs it."""
    spec, phase = pod.get("spec", {}), pod.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.grace_s
    grace_s: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(grace_s, 1) if grace_s < 0 else grace_s


def _end_namespace(transaction: Transaction, stored: StoredObject, body: Json) -> StoredObject:
    """Mark a namespace as terminating; `controllers` empties and removes it."""
    if "deletionTimestamp" in body["metadata"]:
        return stored
    body["metadata"]["deletionTimestamp"] = _seconds_from_now(0)
    body["status"] = body.get("status", {}) | {"phase": "Terminating"}
    return transaction.put("namespaces", body)


def _seconds_from_now(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Bindings:
    """Bind pods of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def bind(self, namespace: str, name: str, caller: Caller, sent: Json) -> None:
        """Set the pod's node, once. Raises: ApiError (409 if it has one)."""
        frame = ApiTarget(resource=BINDINGS, namespace=namespace, name=name)
        body = bodies.read_object(frame, caller, sent)
        name = name or body["metadata"].get("name", "")
        pod = ApiTarget(resource=PODS, namespace=namespace, name=name, subresource="binding")
        wanted = body.get("target") or {}
        if wanted.get("kind", "") not in ("", "Node"):
            text = f'target.kind: Unsupported value: "{wanted["kind"]}": supported values: "Node"'
            raise ApiError(500, "", f'{text}, "<empty>"')
        if not wanted.get("name"):
            raise ApiError(500, "", "target.name: Required value")
        await commit(self._store, caller, lambda tx: _assign(tx, pod, body))


def _assign(transaction: Transaction, target: ApiTarget, binding: Json) -> StoredObject:
    stored = transaction.get("pods", target.namespace, target.name)
    if stored is None:
        raise target.not_found()
    pod = stored.load()
    meta = binding["metadata"]
    if meta.get("uid", stored.uid) != stored.uid:
        raise _binding_conflict(
            target,
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
            f"{stored.uid}",
        )
    if "deletionTimestamp" in pod["metadata"]:
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
        raise _binding_conflict(target, why)
    if node := pod["spec"].get("nodeName"):
        raise _binding_conflict(target, f'pod {target.name} is already assigned to node "{node}"')
    pod["spec"]["nodeName"] = binding["target"]["name"]
    if meta.get("annotations"):
        pod["metadata"].setdefault("annotations", {}).update(meta["annotations"])
    _mark_scheduled(pod)
    return transaction.put("pods", pod)


def _binding_conflict(target: ApiTarget, why: str) -> ApiError:
    return conflict("pods/binding", "", target.name, why)


def _mark_scheduled(pod: Json) -> None:
    """Set the condition PodScheduled to true."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
    for index, have in enumerate(conditions):
        if have.get("type") == "PodScheduled":
            conditions[index] = condition
            return
    conditions.append(condition)
