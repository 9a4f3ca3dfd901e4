"""Binding a pod to a node: the last step of scheduling, as `pods/NAME/binding` and `bindings`."""

from __future__ import annotations

from hamicommon.k8s.types import Json

from kubelocal.apiserver.admission.chain import AdmissionChain
from kubelocal.apiserver.admission.review import Write
from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError, conflict
from kubelocal.apiserver.schema.resources import BY_PATH, PODS
from kubelocal.apiserver.storage.objects import Stored
from kubelocal.apiserver.storage.store import ObjectStore, Transaction
from kubelocal.apiserver.verbs.create_update import commit, now_text
from kubelocal.apiserver.wire import bodies

BINDINGS = BY_PATH["", "v1", "bindings"]


class Bindings:
    """Binds pods of a store."""

    def __init__(self, store: ObjectStore, admission: AdmissionChain) -> None:
        self._store = store
        self._admission = admission

    async def bind(self, namespace: str, name: str, caller: Caller, sent: Json) -> None:
        """Set the pod's node, once. Raises: ApiError (409 where it has one already)."""
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
        if self._admission.hooks_for(pod, "CREATE"):
            await self._ask_webhooks(pod, caller, body)
        await commit(self._store, caller, lambda tx: _assign(tx, pod, body))

    async def _ask_webhooks(self, pod: ApiTarget, caller: Caller, body: Json) -> None:
        write = Write(
            target=pod,
            caller=caller,
            operation="CREATE",
            new=bodies.for_webhook(BINDINGS, body),
            old=None,
            kind={"group": "", "version": "v1", "kind": "Bindings"},
        )
        await self._admission.admit(write, lambda changed: changed)


def _assign(transaction: Transaction, target: ApiTarget, binding: Json) -> Stored:
    stored = transaction.get("pods", target.namespace, target.name)
    if stored is None:
        raise target.not_found()
    pod = stored.load()
    meta = binding["metadata"]
    if meta.get("uid", stored.uid) != stored.uid:
        raise _refused(
            target,
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
            f"{stored.uid}",
        )
    if "deletionTimestamp" in pod["metadata"]:
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
        raise _refused(target, why)
    if node := pod["spec"].get("nodeName"):
        raise _refused(target, f'pod {target.name} is already assigned to node "{node}"')
    pod["spec"]["nodeName"] = binding["target"]["name"]
    if meta.get("annotations"):
        pod["metadata"].setdefault("annotations", {}).update(meta["annotations"])
    _scheduled(pod)
    return transaction.put("pods", pod)


def _refused(target: ApiTarget, why: str) -> ApiError:
    return conflict("pods/binding", "", target.name, why)


def _scheduled(pod: Json) -> None:
    """The condition PodScheduled becomes true."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
    for index, have in enumerate(conditions):
        if have.get("type") == "PodScheduled":
            conditions[index] = condition
            return
    conditions.append(condition)
