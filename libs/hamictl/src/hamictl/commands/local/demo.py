"""The demo: pods of `examples/`, applied in order, until each runs or shows why it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

from hamictl.pods.apply import apply_pod
from hamictl.pods.manifests import read_manifest
from hamictl.view import cluster_state

SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.2


def demo_pods(examples: Path) -> list[Json]:
    """The pods of the folder's manifests, in the order of their file names."""
    return [
        pod
        for path in sorted(examples.glob("*.yaml"))
        for pod in read_manifest(path.read_text(), source=str(path), namespace="default").pods
    ]


async def apply_demo(api: KubeApi, pods: Sequence[Json]) -> None:
    """Creates those that do not exist yet."""
    for pod in pods:
        try:
            await api.get(_path(pod))
        except NotFound:
            await apply_pod(api, pod)


async def settled(api: KubeApi, pods: Sequence[Json]) -> bool:
    """Waits until every pod runs, has ended, or waits with a reason; False when time is over."""
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                live = [await api.get(_path(pod)) for pod in pods]
                if all(_is_settled(pod) for pod in live):
                    return True
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _is_settled(pod: Json) -> bool:
    if not pod["spec"].get("nodeName"):
        return bool(cluster_state.why_waiting(pod))
    return cluster_state.phase(pod) not in ("Pending", "ContainerCreating", "Unknown")
