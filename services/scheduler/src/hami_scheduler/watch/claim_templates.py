"""Create and delete ResourceClaimTemplates for pods that the webhook converted.

Input: the pods' shapes (`hamicommon.dra.shapes`), which the webhook writes and tenants could; the
templates with our label; the sizes of the cluster's cards. Output: one template for each shape in
each namespace, for as long as a pod of it lives. Claims belong to their pods, so they stay when a
template is deleted. A template that is deleted by others, or too early because a pod was not seen
yet, is created again. Every replica does all of it: names follow from shapes, so two replicas make
only one template.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hamicommon.domain.devices import GpuDevice
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.shapes import ClaimShape, parts_of_cards, shape_from, template_of
from hamicommon.errors import Conflict, InvalidRequest, NotFound, Unavailable
from hamicommon.k8s.annotations import CLAIM_SHAPE, annotations_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.state_machine import TERMINAL_PHASES
from hami_scheduler.work_queue import WorkQueue

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesTemplateApi

logger = logging.getLogger(__name__)

IDLE_S = 60.0
"""Time for which a template without pods is kept."""
LOOK_INTERVAL_S = 10.0
CARD_SIZES = "hami.io/card-sizes-mib"
"""Annotation of a template: sizes of cards for which it has alternatives."""


class Place(NamedTuple):
    """Namespace and name of a template."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(eq=False)
class ClaimTemplates:
    """Handlers of the informers of pods and templates, and their worker."""

    api: KubernetesTemplateApi
    card_sizes_mib: Callable[[], Collection[int]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] = time.monotonic
    _of_pod: dict[str, Place] = field(default_factory=dict, init=False)
    _pods: defaultdict[Place, set[str]] = field(
        default_factory=lambda: defaultdict(set), init=False
    )
    _shapes: dict[Place, ClaimShape] = field(default_factory=dict, init=False)
    _made: dict[Place, JsonMapping] = field(default_factory=dict, init=False)
    _idle_since: dict[Place, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue("claim-templates", self._sync, self.bulkhead, self.clock)

    def pod_seen(self, pod: JsonMapping) -> None:
        """Handle a new or changed pod."""
        text = annotations_of(pod).get(CLAIM_SHAPE)
        uid = str(pod["metadata"]["uid"])
        if text is None and uid not in self._of_pod:
            return
        place = None if text is None else self._place(pod, text)
        if place != self._of_pod.get(uid):
            self._leave(uid)
            if place is not None:
                self._of_pod[uid] = place
                self._pods[place].add(uid)
                self._idle_since.pop(place, None)
                self.queue.add(str(place))

    def _place(self, pod: JsonMapping, text: str) -> Place | None:
        """Return the pod's template; None if the pod ended or the webhook did not convert it."""
        if (pod.get("status") or {}).get("phase") in TERMINAL_PHASES:
            return None
        try:
            shape = shape_from(text)
        except InvalidRequest:
            return None
        place = Place(str(pod["metadata"]["namespace"]), shape.template_name)
        self._shapes[place] = shape
        return place

    def pod_gone(self, pod: JsonMapping) -> None:
        """Handle a deleted pod."""
        self._leave(str(pod["metadata"]["uid"]))

    def _leave(self, uid: str) -> None:
        place = self._of_pod.pop(uid, None)
        if place is None:
            return
        self._pods[place].discard(uid)
        if not self._pods[place]:
            del self._pods[place]
            if place not in self._made:
                self._forget(place)

    def template_seen(self, new: JsonMapping, old: JsonMapping | None = None) -> None:
        """Handle a new or changed template with our label."""
        del old
        self._made[_place_of(new)] = new

    def template_gone(self, template: JsonMapping) -> None:
        """Handle a deleted template."""
        place = _place_of(template)
        self._made.pop(place, None)
        self._idle_since.pop(place, None)
        if place in self._pods:
            self.queue.revisit(str(place))
        else:
            self._forget(place)

    def _forget(self, place: Place) -> None:
        self._shapes.pop(place, None)
        self.queue.discard(str(place))

    async def revisit(self, *, listed: bool) -> None:
        """Check each template with live pods, and delete those that were idle for long.

        `listed`: pods and templates were, so unknown ones do not exist.
        """
        for place in self._pods:
            self.queue.revisit(str(place))
        if not listed:
            return
        for place in self._made:
            if place not in self._pods:
                since = self._idle_since.setdefault(place, self.clock())
                if self.clock() - since >= IDLE_S:
                    self.queue.revisit(str(place))

    async def _sync(self, key: str) -> None:
        place = Place(*key.split("/"))
        if place in self._pods:
            await self._keep(place)
        elif place in self._idle_since:
            await self._delete(place)

    async def _keep(self, place: Place) -> None:
        """Create the template, or delete an outdated one.

        Raises: Forbidden (namespace in deletion), InvalidRequest, Unavailable.
        """
        shape, made = self._shapes[place], self._made.get(place)
        body, rests_on = self._body_for(shape, place.namespace)
        if made is not None:
            if annotations_of(made).get(CARD_SIZES, "") != rests_on:
                # Its spec can't be changed; the claims that it made stay as they are.
                await self._delete(place)
            return
        if rests_on:
            body["metadata"]["annotations"] = {CARD_SIZES: rests_on}
        try:
            self.template_seen(await self.api.create(place.namespace, body))
        except Conflict:
            # Another replica's, which the informer brings.
            return
        logger.info("Created a claim template", extra={"template": str(place)})

    def _body_for(self, shape: ClaimShape, namespace: str) -> tuple[Json, str]:
        """Return the template, and the facts about the cluster on which it depends.

        Raises: Unavailable if no card is known yet.
        """
        sizes = sorted(self.card_sizes_mib()) if parts_of_cards(shape) else []
        if parts_of_cards(shape) and not sizes:
            raise Unavailable("no card of the cluster is known yet")
        return template_of(shape, namespace, sizes), ",".join(map(str, sizes))

    async def _delete(self, place: Place) -> None:
        metadata = self._made[place]["metadata"]
        try:
            await self.api.delete(place.namespace, place.name, uid=str(metadata["uid"]))
        except (NotFound, Conflict):
            # It is gone, or another one now: the informer brings it.
            return
        logger.info("Deleted a claim template", extra={"template": str(place)})


def _place_of(template: JsonMapping) -> Place:
    metadata = template["metadata"]
    return Place(str(metadata["namespace"]), str(metadata["name"]))


def card_sizes_mib(models: Iterable[GpuDevice | None]) -> frozenset[int]:
    """Return the MiB of cards that can be DRA devices, each size once."""
    return frozenset(
        model.memory_mib
        for model in models
        if model is not None and model.vendor == VENDOR and model.mode != "mig"
    )
