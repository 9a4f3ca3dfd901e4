"""Admission chain of a write: the built-in plugins, then the webhooks.

In: a `Write`. Out: the object as admission leaves it. The next step is validation, in `verbs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import orjson
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json

from kubelocal.apiserver.admission import review
from kubelocal.apiserver.admission.review import BadAnswer, CelError, WebhookClient, Write
from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.errors import forbidden, internal, not_found
from kubelocal.apiserver.kinds.defaults import tolerate_lost_nodes
from kubelocal.apiserver.schema import resources
from kubelocal.apiserver.storage.store import ObjectStore

logger = logging.getLogger(__name__)
Finish = Callable[[Json], Json]
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class AdmissionChain:
    """Admission chain that uses the objects of a store."""

    def __init__(self, store: ObjectStore, client: WebhookClient) -> None:
        self._store = store
        self._client = client

    def check_namespace(self, target: ApiTarget) -> None:
        """Check a new object's namespace. Raises: ApiError if it is missing or being deleted."""
        if not target.resource.namespaced:
            return
        stored = self._store.get("namespaces", "", target.namespace)
        if stored is None:
            raise not_found("namespaces", "", target.namespace)
        if stored.fields["status.phase"] == "Terminating":
            raise forbidden(
                target.resource.plural,
                target.resource.group,
                target.name,
                f"unable to create new content in namespace {target.namespace} because it is "
                "being terminated",
            )

    def default_pod(self, target: ApiTarget, pod: Json) -> None:
        """Apply the plugins Priority and DefaultTolerationSeconds to the pod."""
        spec = pod["spec"]
        tolerate_lost_nodes(spec)
        name = spec.get("priorityClassName", "")
        value, policy = self._priority(target, name)
        spec["priority"] = value
        spec.setdefault("preemptionPolicy", policy)

    def hooks_for(self, target: ApiTarget, operation: str) -> bool:
        """Return whether a webhook has a rule for this write; without one it need not wait."""
        return any(
            review.rules_match(hook, target, operation)
            for resource in (resources.MUTATING_WEBHOOKS, resources.VALIDATING_WEBHOOKS)
            for hook in self._hooks(resource.store_key)
        )

    async def admit(self, write: Write, finish: Finish) -> Json | None:
        """Call the mutating webhooks one by one, then the validating ones together.

        `finish` cleans and defaults the object after a patch. Raises: ApiError where one refuses.
        """
        for hook in self._hooks(resources.MUTATING_WEBHOOKS.store_key):
            response = await self._ask(hook, write)
            if response is None or write.new is None:
                continue
            try:
                changed = review.apply_patch(response, write.new)
            except BadAnswer as error:
                self._on_failure(hook, str(error))
                continue
            if changed is not write.new:
                write = replace(write, new=finish(changed))
        asked = self._hooks(resources.VALIDATING_WEBHOOKS.store_key)
        await asyncio.gather(*(self._ask(hook, write) for hook in asked))
        return write.new

    async def _ask(self, hook: Json, write: Write) -> Json | None:
        """Return the webhook's answer if it allows.

        None if it has no rule for this, or fails open.
        """
        if not review.rules_match(hook, write.target, write.operation):
            return None
        name = hook["name"]
        try:
            if not review.selectors_match(hook, write, self._namespace_labels(write)):
                return None
            if not review.conditions_hold(hook, write):
                return None
            timeout_s = float(hook.get("timeoutSeconds", 10))
            uid, body = review.review(write)
            answer = await self._client.post(hook["clientConfig"], body, timeout_s)
            response = review.read_answer(uid, answer)
        except (Unavailable, BadAnswer, CelError) as error:
            self._on_failure(hook, str(error))
            return None
        write.caller.warnings.extend(response.get("warnings") or [])
        if response.get("auditAnnotations"):
            annotations = {
                f"{name}/{key}": value for key, value in response["auditAnnotations"].items()
            }
            logger.info(
                "Received audit annotations", extra={"uid": uid, "annotations": annotations}
            )
        if not response.get("allowed"):
            raise review.denial(name, response)
        return response

    def _on_failure(self, hook: Json, why: str) -> None:
        """Raise ApiError (500) unless the webhook's failure is ignored."""
        text = f'failed calling webhook "{hook["name"]}": failed to call webhook: {why}'
        logger.warning("Failed to call a webhook", extra={"webhook": hook["name"], "error": why})
        if hook.get("failurePolicy", "Fail") == "Fail":
            raise internal(text)

    def _namespace_labels(self, write: Write) -> Json | None:
        if not write.target.namespace:
            return None
        stored = self._store.get("namespaces", "", write.target.namespace)
        return dict(stored.labels) if stored is not None else {}

    def _hooks(self, collection: str) -> Iterable[Json]:
        """Return the webhooks of all configurations, in the order of the configurations' names."""
        return [
            hook for stored in self._store.items(collection) for hook in _read_hooks(stored.raw)
        ]

    def _priority(self, target: ApiTarget, name: str) -> tuple[int, str]:
        default_policy = "PreemptLowerPriority"
        if name in _SYSTEM_PRIORITIES:
            return _SYSTEM_PRIORITIES[name], default_policy
        classes = [
            stored.load() for stored in self._store.items("scheduling.k8s.io/priorityclasses")
        ]
        if name:
            found = next((each for each in classes if each["metadata"]["name"] == name), None)
            if found is None:
                raise target.forbidden(f"no PriorityClass with name {name} was found")
        else:
            chosen = [each for each in classes if each.get("globalDefault")]
            found = min(chosen, key=lambda each: int(each["value"])) if chosen else {"value": 0}
        return int(found["value"]), found.get("preemptionPolicy", default_policy)


@lru_cache(maxsize=64)
def _read_hooks(raw: bytes) -> list[Json]:

    hooks: list[Json] = orjson.loads(raw).get("webhooks", [])
    return hooks


def priority_class_bodies() -> list[Json]:
    """Return the two PriorityClasses that every cluster has."""
    return [
        {
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": "Used for system critical pods that must not be moved.",
        }
        for name, value in _SYSTEM_PRIORITIES.items()
    ]
