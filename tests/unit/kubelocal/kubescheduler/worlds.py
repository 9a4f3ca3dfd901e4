"""A cluster with a scheduler, ours or the real one, and an extender that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from kubelocal.kubescheduler.__main__ import schedule
from kubelocal.kubescheduler.configuration import read_configuration

from tests.control_plane import ApiServer, ControlPlane, scheduler_config
from tests.processes import running
from tests.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"
GPU = "nvidia.com/gpu"


class ScriptedExtender:
    """An extender whose decisions a test writes: refusals by node, and how binding goes."""

    def __init__(self, api: KubeApi) -> None:
        self.refused: dict[str, str] = {}
        self.error = ""
        self.bind_errors: list[str] = []
        self.bind_gate = asyncio.Event()
        self.bind_gate.set()
        self.filtered: list[str] = []
        self._api = api

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        if request.path == "/filter":
            self.filtered.append(body["Pod"]["metadata"]["name"])
            names = [name for name in body["NodeNames"] if name not in self.refused]
            failed = {name: self.refused[name] for name in body["NodeNames"] if name not in names}
            answer = {"NodeNames": names, "FailedNodes": failed, "Error": self.error}
            return web.json_response(answer)
        await self.bind_gate.wait()
        if self.bind_errors:
            return web.json_response({"Error": self.bind_errors.pop(0)})
        await self._api.create(
            f"{PODS}/{body['PodName']}/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": body["PodName"], "uid": body["PodUID"]},
                "target": {"kind": "Node", "name": body["Node"]},
            },
        )
        return web.json_response({"Error": ""})


class World:
    """A cluster with a scheduler and an extender."""

    def __init__(self, api: KubeApi, extender: ScriptedExtender) -> None:
        self.api = api
        self.extender = extender

    async def node(self, name: str, **spec: Any) -> None:
        status = {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10", GPU: "10"}}
        await self.api.create(
            "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec, "status": status}
        )

    async def pod(self, name: str, *, cpu: str = "100m", gpu: bool = True, **spec: Any) -> None:
        limits = {"cpu": cpu} | ({GPU: "1"} if gpu else {})
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        await self.api.create(PODS, body)

    async def condition(self, name: str) -> Json:
        pod = await self.api.get(f"{PODS}/{name}")
        conditions = pod["status"].get("conditions") or []
        return next((one for one in conditions if one["type"] == "PodScheduled"), {})

    async def wait_for_binding(self, name: str) -> str:
        async def where() -> str | None:
            return (await self.api.get(f"{PODS}/{name}"))["spec"].get("nodeName")

        return str(await eventually(where))

    async def wait_for_refusal(self, name: str, expected: str) -> Json:
        """Wait until the pod's condition begins with this text; that condition."""

        async def read_condition() -> Json | None:
            condition = await self.condition(name)
            return condition if condition.get("message", "").startswith(expected) else None

        return dict(await eventually(read_condition))

    async def wait_for_attempts(self, name: str, times: int) -> None:
        """Wait until the extender was asked about the pod so often."""

        async def often() -> bool:
            return self.extender.filtered.count(name) >= times

        await eventually(often)

    async def events(self, name: str, reason: str) -> list[Json]:
        async def list_events() -> list[Json]:
            events = await self.api.get("/api/v1/namespaces/default/events")
            return [
                event
                for event in events["items"]
                if event["involvedObject"]["name"] == name and event["reason"] == reason
            ]

        return list(await eventually(list_events))

    async def clear(self) -> None:
        for pod in (await self.api.get(PODS))["items"]:
            await self.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        await self.api.delete("/api/v1/nodes")
        await self.api.delete("/api/v1/namespaces/default/events")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which scheduler runs against which API server."""

    scheduler: str
    server: ApiServer
    plane: ControlPlane | None

    def since(self, version: tuple[int, int]) -> bool:
        """Whether this kube-scheduler is of the version at least; ours is as a new one."""
        older = self.scheduler == "real" and self.plane and self.plane.assets.version < version
        return not older


@asynccontextmanager
async def serving(extender: ScriptedExtender) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{verb}", extender.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        extender.bind_gate.set()
        await runner.cleanup()


@asynccontextmanager
async def our_scheduler(kind: Kind, extender: Json, folder: Path) -> AsyncIterator[None]:
    kubeconfig = kind.server.kubeconfigs["system:kube-scheduler"]
    config = scheduler_config(version=(1, 25), kubeconfig=kubeconfig, extenders=[extender])
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    task = asyncio.create_task(schedule(kubeconfig, read_configuration(path)))
    yield
    task.cancel()
    await task


@asynccontextmanager
async def real_scheduler(kind: Kind, extender: Json) -> AsyncIterator[None]:
    assert kind.plane is not None
    server = running(kind.plane.scheduler_plan([extender]), die_with_parent=False)
    await asyncio.to_thread(server.__enter__)
    yield
    await asyncio.to_thread(server.__exit__, None, None, None)


@asynccontextmanager
async def open_world(kind: Kind, folder: Path) -> AsyncIterator[World]:
    """An empty cluster with the scheduler under test."""
    async with open_kube_api(kind.server.kubeconfig) as api:
        scripted = ScriptedExtender(api)
        async with serving(scripted) as url:
            config = {
                "urlPrefix": url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
                "managedResources": [{"name": GPU, "ignoredByScheduler": True}],
            }
            scheduler = (
                our_scheduler(kind, config, folder)
                if kind.scheduler == "ours"
                else real_scheduler(kind, config)
            )
            async with scheduler:
                found = World(api, scripted)
                yield found
                await found.clear()
