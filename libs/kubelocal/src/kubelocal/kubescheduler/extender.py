"""Client of the extender protocol: filter, prioritize and bind.

Field names are written as Go writes them (`Pod`, `NodeNames`) and read in any case.
Wire: k8s.io/kube-scheduler/extender/v1.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from hamicommon.k8s.types import Json

from kubelocal.kubescheduler.cluster import Node
from kubelocal.kubescheduler.configuration import ExtenderConfig
from kubelocal.pod_resources import names_of

# Below uvicorn's five seconds: a connection that the server is about to close is never re-used.
_KEEPALIVE_S = 3.0


class ExtenderError(Exception):
    """Error: the extender refused the whole request, or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResponse:
    """Names of remaining nodes, and reasons for the refused ones."""

    kept: tuple[str, ...]
    failed: Mapping[str, str]


class Extender:
    """Client of one configured extender."""

    def __init__(self, config: ExtenderConfig, client: httpx.AsyncClient) -> None:
        self.config = config
        self._client = client
        self._managed = frozenset(resource.name for resource in config.managed_resources)

    @property
    def ignored_resources(self) -> frozenset[str]:
        """Resources that the scheduler itself must not count."""
        managed = self.config.managed_resources
        return frozenset(one.name for one in managed if one.ignored_by_scheduler)

    def is_interested(self, pod: Json) -> bool:
        """Return whether the pod requests one of its resources, or the extender sees all pods."""
        return not self._managed or not self._managed.isdisjoint(names_of(pod["spec"]))

    async def filter(self, pod: Json, nodes: Sequence[Node]) -> FilterResponse:
        """Return the nodes that the extender accepts.

        Raises:
            ExtenderError: it answered with an error, or names a node that it was not given.
        """
        if not self.config.filter_verb:
            return FilterResponse(kept=tuple(node.name for node in nodes), failed={})
        answer = await self._send(self.config.filter_verb, self._arguments(pod, nodes))
        if answer.get("error"):
            raise ExtenderError(answer["error"])
        kept = self._kept_nodes(answer)
        unknown = set(kept) - {node.name for node in nodes}
        if unknown:
            raise ExtenderError(
                f'extender "{self.config.url_prefix}" claims a filtered node "{min(unknown)}"'
                " which is not found in the input node list"
            )
        failed = {
            **(answer.get("failednodes") or {}),
            **(answer.get("failedandunresolvablenodes") or {}),
        }
        return FilterResponse(kept=kept, failed=failed)

    async def prioritize(self, pod: Json, nodes: Sequence[Node]) -> dict[str, int]:
        """Return scores by node, 0..10 by contract.

        Raises:
            ExtenderError: it could not be asked.
        """
        if not self.config.prioritize_verb:
            return {}
        answer = await self._send(self.config.prioritize_verb, self._arguments(pod, nodes))
        rows = [_lower_keys(row) for row in answer.get("items", ())]
        return {str(row["host"]): int(row["score"]) for row in rows}

    async def bind(self, pod: Json, node: str) -> None:
        """Let the extender bind the pod.

        Raises:
            ExtenderError: it did not.
        """
        metadata = pod["metadata"]
        arguments = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        answer = await self._send(self.config.bind_verb, arguments)
        if answer.get("error"):
            raise ExtenderError(answer["error"])

    def _arguments(self, pod: Json, nodes: Sequence[Node]) -> Json:
        if self.config.node_cache_capable:
            return {"Pod": pod, "Nodes": None, "NodeNames": [node.name for node in nodes]}
        listed = {"metadata": {}, "items": [node.item for node in nodes]}
        return {"Pod": pod, "Nodes": listed, "NodeNames": None}

    def _kept_nodes(self, answer: Mapping[str, Any]) -> tuple[str, ...]:
        if self.config.node_cache_capable and answer.get("nodenames") is not None:
            return tuple(answer["nodenames"])
        nodes = _lower_keys(answer.get("nodes") or {})
        return tuple(node["metadata"]["name"] for node in nodes.get("items") or ())

    async def _send(self, verb: str, arguments: Json) -> Json:
        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        body = orjson.dumps(arguments)
        try:
            try:
                answer = await self._post(url, body)
            except httpx.RemoteProtocolError:
                # The server closed an idle connection during our request; Go's client retries, too.
                answer = await self._post(url, body)
        except (httpx.HTTPError, OSError) as exc:
            raise ExtenderError(f'Post "{url}": {str(exc) or type(exc).__name__}') from exc
        if answer.status_code != 200:
            raise ExtenderError(
                f"failed {verb} with extender at URL {url}, code {answer.status_code}"
            )
        try:
            decoded = orjson.loads(answer.content)
        except orjson.JSONDecodeError as exc:
            raise ExtenderError(f"extender at URL {url} answers no JSON: {exc}") from exc
        return {"items": decoded} if isinstance(decoded, list) else _lower_keys(decoded or {})

    async def _post(self, url: str, body: bytes) -> httpx.Response:
        return await self._client.post(
            url, content=body, headers={"Content-Type": "application/json"}
        )


@asynccontextmanager
async def open_extender(config: ExtenderConfig) -> AsyncIterator[Extender]:
    """Return an extender with its own connections."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S)
    timeout = httpx.Timeout(config.http_timeout)
    async with httpx.AsyncClient(limits=limits, timeout=timeout) as client:
        yield Extender(config, client)


def _lower_keys(answer: Mapping[str, Any]) -> Json:
    return {key.lower(): value for key, value in answer.items()}
