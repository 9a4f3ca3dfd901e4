"""The API server as our processes see it: pods, nodes and quotas, with versions and watches.

`ApiServer` is the one store. `Connection` is a process's client with the methods of
`hamicommon.k8s.client.KubeApi`, so that the real adapters and informers run on it. A connection's
watch has its own delay and sometimes breaks, but keeps the order, as etcd's does.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from hamicommon.errors import Conflict, NotFound, Unavailable
from hamicommon.k8s.client import Expired
from hamicommon.k8s.types import Json

from tests.simulation.cluster.processes import Process, Weather
from tests.simulation.fake_time import wall_clock

Key = tuple[str, str, str]
"""(plural, namespace, name); the namespace of a node is the empty string."""

FINALLY = frozenset({"Succeeded", "Failed"})
# What a watch may begin with; an older one is 410 Gone.
KEPT_EVENTS = 400


class ApiServer:
    """Objects by plural, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.version = 0
        self.log: list[tuple[int, str, str, Json]] = []
        """(version, type, plural, object), oldest first."""
        self._first = 0
        self._keys: dict[str, Key] = {}
        self.changed = asyncio.Event()
        self.listeners: list[Callable[[str, str, Json], None]] = []

    def put(self, plural: str, item: Json) -> Json:
        """Create or replace an object."""
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        kept = {**item, "metadata": metadata}
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = kept
        if plural == "pods":
            self._keys[metadata["uid"]] = key
        self._notify(kind, plural, kept)
        return kept

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object, if it exists."""
        item = self.objects.pop((plural, namespace, name), None)
        if item is not None:
            self.version += 1
            metadata = {**item["metadata"], "resourceVersion": str(self.version)}
            self._notify("DELETED", plural, {**item, "metadata": metadata})

    def pod(self, uid: str) -> Json | None:
        """The pod with this uid."""
        key = self._keys.get(uid)
        pod = None if key is None else self.objects.get(key)
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    def all(self, plural: str) -> list[Json]:
        """All objects of one kind."""
        return [item for key, item in self.objects.items() if key[0] == plural]

    def change(self, uid: str, *, spec: Json | None = None, **status: Any) -> None:
        """Change a pod's status (and spec), if it still exists."""
        pod = self.pod(uid)
        if pod is not None:
            self.put(
                "pods",
                {
                    **pod,
                    "spec": {**pod["spec"], **(spec or {})},
                    "status": {**pod["status"], **status},
                },
            )

    def since(self, version: int) -> list[tuple[int, str, str, Json]]:
        """Events after a version. Raises: Expired."""
        if self.log and version < self.log[0][0] - 1 and self._first > version:
            raise Expired("too old resource version")
        return [event for event in self.log if event[0] > version]

    def _notify(self, kind: str, plural: str, item: Json) -> None:
        self.log.append((self.version, kind, plural, item))
        if len(self.log) > KEPT_EVENTS:
            self._first = self.log[-KEPT_EVENTS][0]
            del self.log[:-KEPT_EVENTS]
        self.changed.set()
        self.changed = asyncio.Event()
        for listener in self.listeners:
            listener(kind, plural, item)


class Connection:
    """One process's client."""

    def __init__(self, server: ApiServer, process: Process, weather: Weather, seed: str) -> None:
        self._server, self._process, self._weather = server, process, weather
        self._rng = random.Random(f"{seed}:{process.name}:api")

    async def get(self, path: str, **query: str) -> Json:
        """Serve KubeApi.get."""
        return await self._call(lambda: self._get(path, query))

    async def request(self, method: str, path: str, **_options: Any) -> Json:
        """Serve KubeApi.request for GET only."""
        assert method == "GET"
        return await self.get(path)

    async def create(self, path: str, body: Json, **_query: str) -> Json:
        """Serve KubeApi.create; events of pods are dropped."""
        if path.endswith("/events"):
            return {}
        assert path.endswith("/binding")
        return await self._call(lambda: self._bind(path.removesuffix("/binding"), body))

    async def patch(self, path: str, body: Json) -> Json:
        """Serve KubeApi.patch for annotations and labels only."""
        if "/events/" in path:
            return {}
        return await self._call(lambda: self._patch(path, body["metadata"]))

    async def delete(self, path: str, body: Json) -> Json:
        """Serve KubeApi.delete for bound pods only: their kubelet removes them."""
        return await self._call(lambda: self._delete(path, body["preconditions"]["uid"]))

    async def watch(self, path: str, *, resource_version: str, **query: str) -> AsyncIterator[Json]:
        """Serve KubeApi.watch."""
        plural, seen = path.rpartition("/")[2], int(resource_version)
        node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
        while True:
            waiter = self._server.changed
            for version, kind, of, item in self._server.since(seen):
                seen = version
                if of != plural or (node and item["spec"].get("nodeName") != node):
                    continue
                await self._process.hop(self._rng.uniform(0.001, 0.02))
                struck = self._weather.strike("watch", asyncio.get_running_loop().time(), self._rng)
                if struck in ("refused", "lost"):
                    raise Unavailable("watch broken")
                if struck:
                    await self._process.hop(self._rng.uniform(0.0, 3.0))
                yield {"type": kind, "object": item}
            await waiter.wait()

    async def _call(self, work: Callable[[], Json]) -> Json:
        async def at_server() -> Json:
            return work()

        return await self._process.across("api", self._rng, at_server)

    def _get(self, path: str, query: Mapping[str, str]) -> Json:
        parts = path.strip("/").split("/")
        if len(parts) == 2:
            raise NotFound(f"API group {parts[1]} is not served")
        if len(parts) == 3:
            node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
            items = [
                item
                for item in self._server.all(parts[2])
                if not node or item["spec"].get("nodeName") == node
            ]
            version = {"resourceVersion": str(self._server.version)}
            return {"metadata": version, "items": items}
        return self._one(path)

    def _one(self, path: str) -> Json:
        *_, plural, name = parts = path.strip("/").split("/")
        namespace = parts[3] if parts[2] == "namespaces" else ""
        try:
            return self._server.objects[plural, namespace, name]
        except KeyError:
            raise NotFound(f"{plural} {name} not found") from None

    def _patch(self, path: str, metadata: Json) -> Json:
        item = self._one(path)
        old = item["metadata"]
        for guard in ("uid", "resourceVersion"):
            if metadata.get(guard, old[guard]) != old[guard]:
                raise Conflict(f"the {guard} in the precondition differs")
        merged = {
            key: {
                name: value
                for name, value in {**(old.get(key) or {}), **(metadata.get(key) or {})}.items()
                if value is not None
            }
            for key in ("annotations", "labels")
        }
        plural = path.strip("/").split("/")[-2]
        return self._server.put(plural, {**item, "metadata": {**old, **merged}})

    def _delete(self, path: str, uid: str) -> Json:
        pod = self._one(path)
        if pod["metadata"]["uid"] != uid:
            raise Conflict("the uid in the precondition differs")
        metadata = {"deletionTimestamp": now_text(), **pod["metadata"]}
        self._server.put("pods", {**pod, "metadata": metadata})
        return {}

    def _bind(self, path: str, body: Json) -> Json:
        pod = self._one(path)
        metadata, node = pod["metadata"], body["target"]["name"]
        if body["metadata"].get("uid") not in (None, metadata["uid"]):
            raise Conflict("the uid in the precondition differs")
        if pod["spec"].get("nodeName"):
            raise Conflict(f"pod {metadata['name']} is already assigned to a node")
        if metadata.get("deletionTimestamp"):
            raise Conflict(f"pod {metadata['name']} is being deleted, cannot be assigned to a host")
        conditions = [{"type": "PodScheduled", "status": "True"}]
        self._server.put(
            "pods",
            {
                **pod,
                "spec": {**pod["spec"], "nodeName": node},
                "status": {**pod["status"], "conditions": conditions},
            },
        )
        return {}


def now_text() -> str:
    """Return the time as objects have it."""
    return wall_clock().isoformat(timespec="milliseconds")
