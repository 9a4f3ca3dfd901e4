"""`python -m kubelocal.controllers --kubeconfig FILE`: keeps workloads supplied with pods."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from hamicommon import telemetry
from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.settings import TelemetrySettings

from kubelocal.controllers.plan import KINDS, WorkloadKind, WorkloadPlan, owner_uid, plan

logger = logging.getLogger(__name__)

# A refused pod (quota, webhook) is tried again this much later; changes are acted on at once.
RETRY_S = 5.0


class Controller:
    """Watches workloads and pods; one round looks at every workload."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self._workloads = {kind: self._informer(kind.collection()) for kind in KINDS}
        self._pods = self._informer("/api/v1/pods")

    def _informer(self, path: str) -> Informer:
        return Informer(
            self._api,
            path,
            on_upsert=lambda _new, _old: self._changed.set(),
            on_delete=lambda _last: self._changed.set(),
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        informers = [*self._workloads.values(), self._pods]
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            while True:
                self._changed.clear()
                await self._round()
                try:
                    async with asyncio.timeout(RETRY_S):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _round(self) -> None:
        owned: dict[str, list[Json]] = {}
        for pod in self._pods.store.values():
            owned.setdefault(owner_uid(pod) or "", []).append(pod)
        for kind, informer in self._workloads.items():
            for workload in list(informer.store.values()):
                uid = workload["metadata"]["uid"]
                await self._carry_out(kind, workload, plan(kind, workload, owned.get(uid, [])))

    async def _carry_out(self, kind: WorkloadKind, workload: Json, wanted: WorkloadPlan) -> None:
        namespace, name = workload["metadata"]["namespace"], workload["metadata"]["name"]
        pods = f"/api/v1/namespaces/{namespace}/pods"
        try:
            for pod in wanted.create:
                await self._api.create(pods, pod)
            for pod_name in wanted.delete:
                await self._api.delete(f"{pods}/{pod_name}")
            if wanted.status is not None:
                path = f"{kind.collection(namespace)}/{name}/status"
                await self._api.patch(path, {"status": dict(wanted.status)})
        except (Conflict, NotFound):
            # The store was older than the server; the event that brings it is on its way.
            return
        except HamiError as exc:
            logger.warning(
                "workload not served", extra={"workload": f"{kind.name}/{name}", "why": str(exc)}
            )


async def serve(kubeconfig: Path) -> None:
    """Opens the client and runs."""
    async with open_kube_api(kubeconfig) as api:
        await Controller(api).run()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m kubelocal.controllers")
    parser.add_argument("--kubeconfig", required=True, type=Path)
    given = parser.parse_args()
    telemetry.setup("hami-workloads", TelemetrySettings())
    asyncio.run(serve(given.kubeconfig))


if __name__ == "__main__":
    main()
