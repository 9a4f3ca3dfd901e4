"""Watch of PodGroup objects, if the API server serves them: quorums, and failed groups.

Kubernetes' own are behind gates (1.36: `v1alpha2`), those of scheduler-plugins are a
CustomResourceDefinition. Either may be there, or come later: the API server is asked now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.pod_groups import COSCHEDULING_API, NATIVE_API, PodGroup, quorum_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.process.outages import Outage

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 30.0
PLURAL = "podgroups"
SCHEDULED = "PodGroupScheduled"


class PodGroupWatch:
    """Watches the PodGroups of both APIs."""

    def __init__(self, api: KubeApi, on_failed: Callable[[PodGroup], None]) -> None:
        """Create the watch; `on_failed` is called when kube-scheduler gave up a group."""
        self._api = api
        self._on_failed = on_failed
        self._informers: dict[str, Informer] = {}
        self._outage = Outage(
            logger,
            failed="Failed to look for PodGroups, retrying",
            again="Looking for PodGroups again",
        )

    def quorum(self, group: PodGroup) -> int | None:
        """Return the quorum in the group's PodGroup object; None if there is no object."""
        informer = self._informers.get(NATIVE_API if group.is_native else COSCHEDULING_API)
        found = None if informer is None else informer.store.get((group.namespace, group.name))
        return None if found is None else quorum_of(found)

    async def run(self) -> None:
        """Watch the kinds that the API server serves, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for api_group in (NATIVE_API, COSCHEDULING_API):
                    if api_group not in self._informers:
                        informer = await self._informer(api_group)
                        if informer is not None:
                            self._informers[api_group] = informer
                            tasks.create_task(informer.run())
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def _informer(self, api_group: str) -> Informer | None:
        try:
            version = await self._version(api_group)
        except NotFound:
            version = ""
        except HamiError as exc:
            self._outage.on_failure(exc)
            return None
        self._outage.on_success()
        if not version:
            return None
        return Informer(
            self._api,
            f"/apis/{api_group}/{version}/{PLURAL}",
            on_upsert=partial(self._on_upsert, is_native=api_group == NATIVE_API),
            on_delete=lambda _: None,
        )

    async def _version(self, api_group: str) -> str:
        """Return the first served version that has PodGroups; empty if none."""
        answer = await self._api.get(f"/apis/{api_group}")
        for each in answer.get("versions") or []:
            version = str(each["version"])
            served = await self._api.get(f"/apis/{api_group}/{version}")
            if any(one.get("name") == PLURAL for one in served.get("resources") or []):
                return version
        return ""

    def _on_upsert(self, new: Json, old: Json | None, *, is_native: bool) -> None:
        if old is not None and _verdict(new) != _verdict(old) and _verdict(new)[:1] == ("False",):
            metadata = new["metadata"]
            self._on_failed(PodGroup(metadata["namespace"], metadata["name"], is_native))


def _verdict(pod_group: JsonMapping) -> tuple[str, ...]:
    for each in (pod_group.get("status") or {}).get("conditions") or ():
        if each.get("type") == SCHEDULED:
            return tuple(str(each.get(key)) for key in ("status", "lastTransitionTime", "message"))
    return ()
