"""Nodes of a scheduler that is not ours: their cards are an annotation, and so is their answer.

What a HAMi node shows (`hami.io/node-nvidia-register` and a handshake that was just reported) is on
each Node object; the device plugin's side of a pod (`bind-phase: success`, the node's lock freed)
is played when the pod is bound. So any extender that speaks HAMi's protocol is measured in the same
rounds, with the same pods, as ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import HamiError
from hamicommon.k8s.annotations import (
    BIND_PHASE,
    NODE_LOCK,
    NVIDIA_HANDSHAKE,
    NVIDIA_REGISTER,
    PHASE_SUCCESS,
    encode_register,
)
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json

from bench.pods.played import (
    CARD_MIB,
    RESOURCE,
    WRITERS,
    card_uuid,
    carry_out_all,
    register_node,
    running_status,
)

logger = logging.getLogger(__name__)

STARTS_S = 300.0
LOOK_S = 0.5
HANDSHAKE_S = 30.0
"""Interval at which HAMi's device plugin reports."""


async def until_it_answers(url: str, kubeconfig: Path) -> None:
    """Print the API server that the extender must watch, and wait for it to listen.

    Raises: SystemExit when it does not.
    """
    print(f"KUBECONFIG={kubeconfig} is what the extender at {url} must watch", flush=True)
    try:
        async with asyncio.timeout(STARTS_S), httpx.AsyncClient() as client:
            while True:
                with suppress(httpx.TransportError):
                    await client.get(url)
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise SystemExit(f"no extender answered at {url} within {STARTS_S:g} s") from None


class AnnotatedNodes:
    """Equal nodes without an agent of ours."""

    def __init__(
        self,
        api: KubeApi,
        *,
        names: list[str],
        cards: int,
        slots: int,
        on_running: Callable[[str], None],
    ) -> None:
        """`on_running` gets the uid of each pod that was reported to run."""
        self._api = api
        self._names = names
        self._cards = cards
        self._slots = slots
        self._on_running = on_running
        self._bound: set[str] = set()
        self._work: asyncio.Queue[Json] = asyncio.Queue()

    async def register(self) -> None:
        """Make the Node objects with their cards."""
        for name in self._names:
            await register_node(self._api, name, str(self._cards * self._slots))
        await self._report()

    async def _report(self) -> None:
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        for name in self._names:
            cards = [
                GpuDevice(
                    uuid=GpuUuid(card_uuid(name, index)),
                    index=index,
                    vendor="NVIDIA",
                    type="NVIDIA A100-SXM4-80GB",
                    slots=self._slots,
                    memory_mib=CARD_MIB,
                    core_percent=100,
                )
                for index in range(self._cards)
            ]
            annotations = {
                NVIDIA_REGISTER: encode_register(cards),
                NVIDIA_HANDSHAKE: f"Reported_{at}",
            }
            await self._api.patch(
                f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}}
            )

    async def run(self) -> None:
        """Play until cancelled."""
        informer = Informer(
            self._api, "/api/v1/pods", on_upsert=self._on_pod, on_delete=lambda pod: None
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informer.run())
            for _ in range(WRITERS):
                tasks.create_task(carry_out_all(self._work, self._carry_out))
            tasks.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HANDSHAKE_S)
            try:
                await self._report()
            except HamiError as exc:
                logger.warning("cards not reported", extra={"error": str(exc)})

    def _on_pod(self, new: Json, old: Json | None) -> None:
        del old
        uid = new["metadata"]["uid"]
        if new["spec"].get("nodeName") and uid not in self._bound:
            self._bound.add(uid)
            self._work.put_nowait(new)

    async def _carry_out(self, pod: Json) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        if RESOURCE in limits:
            # What the device plugin does at Allocate: the pod has its cards, the node is free.
            await self._api.patch(path, {"metadata": {"annotations": {BIND_PHASE: PHASE_SUCCESS}}})
            await self._api.patch(
                f"/api/v1/nodes/{pod['spec']['nodeName']}",
                {"metadata": {"annotations": {NODE_LOCK: None}}},
            )
        await self._api.patch(f"{path}/status", {"status": running_status(pod)})
        self._on_running(metadata["uid"])
