"""Read the kubelet's device checkpoint and its PodResources API.

The checkpoint has pod uids, init containers and our answers; PodResources is a public API but lacks
the first two. Each is sufficient if the other can't be read.

Answers in the checkpoint are ours, recognized by the limits mount, or HAMi's, which have limits in
the environment (protocol 5.7.1) and name the cards there, in mounts or as CDI devices. Both come
from a device plugin and are stored by the kubelet: no user can write them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import grpc
import orjson
from google.protobuf.message import DecodeError
from hamicommon.domain.ids import GpuUuid
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import podresources_pb2, podresources_pb2_grpc

from hami_node_agent.allocation.response import LIMITS_MOUNT, nonce_of
from hami_node_agent.devices.device_list import CDI_VENDOR, VISIBLE, VISIBLE_MOUNTS
from hami_node_agent.grants.ports import ForeignAnswer, Holding, KeptAnswer, KubeletReading

logger = logging.getLogger(__name__)

POD_RESOURCES_TIMEOUT_S = 2.0
CDI_CLASS = f"{CDI_VENDOR}/gpu="
_MEMORY = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_(\d{1,3})")
_MIB = re.compile(r"(\d{1,10})m")


@dataclass(eq=False)
class KubeletStateReader:
    """Reads the kubelet's checkpoint and PodResources, merged by pod uid and container.

    `card_at`: the card with an NVML index, for answers that name cards by it.
    """

    _: KW_ONLY
    checkpoint: Path
    pod_resources: Path
    resource: str
    uid_of: Callable[[str, str], str]
    api_uid: Callable[[str], str] = str
    card_at: Callable[[str], GpuUuid | None] = lambda _: None

    async def holdings(self) -> tuple[Holding, ...]:
        """Return all containers that hold ids of our resource. Raises: Unavailable."""
        reading = await self.read()
        if not reading.readable:
            raise Unavailable(
                f"the kubelet's checkpoint and PodResources are unavailable: "
                f"{'; '.join(reading.problems)}"
            )
        return reading.holdings

    async def checkpointed_holdings(self) -> tuple[Holding, ...]:
        """Return the holders from the checkpoint only, which is cheaper. Raises: Unavailable."""
        try:
            content = await asyncio.to_thread(self.checkpoint.read_bytes)
            return tuple(map(self._resolve_ids, read_checkpoint(content, self.resource)))
        except (OSError, InvalidRequest) as exc:
            raise Unavailable(f"{self.checkpoint}: {exc}") from exc

    async def read(self) -> KubeletReading:
        """Return all holders that can be read, and the sources that can't."""
        problems: list[str] = []
        kept: tuple[Holding, ...] = ()
        listed: tuple[Holding, ...] = ()
        try:
            kept = await self.checkpointed_holdings()
        except Unavailable as exc:
            problems.append(str(exc))
        try:
            listed = self._holdings_of((await self._list()).pod_resources)
        except Unavailable as exc:
            problems.append(str(exc))
        known = {(holding.pod_uid, holding.container) for holding in kept}
        more = tuple(h for h in listed if (h.pod_uid, h.container) not in known)
        return KubeletReading(
            holdings=kept + more, problems=tuple(problems), readable=len(problems) < 2
        )

    def _resolve_ids(self, holding: Holding) -> Holding:
        """Return the holding under the pod's uid at the API server.

        It has the cards of our answer by uuid (id strategy `index` has numbers).
        """
        uid = self.api_uid(holding.pod_uid)
        if uid != holding.pod_uid:
            holding = replace(holding, pod_uid=uid)
        if holding.answer is None:
            return holding
        cards = tuple(self.card_at(card) or card for card in holding.answer.cards)
        if cards == holding.answer.cards:
            return holding
        return replace(holding, answer=replace(holding.answer, cards=cards))

    async def mounted_paths(self) -> frozenset[str]:
        """Return the host paths that answers for any resource mount. Raises: Unavailable.

        Answers of other plugins count: HAMi's, before us, mounts a library beside ours.
        """
        try:
            return mounted_paths(await asyncio.to_thread(self.checkpoint.read_bytes))
        except (OSError, InvalidRequest) as exc:
            raise Unavailable(f"{self.checkpoint}: {exc}") from exc

    async def claim_nonces(self) -> frozenset[str]:
        """Return the nonces of slices that pods have by ResourceClaims. Raises: Unavailable."""
        return frozenset(nonce for *_, nonce in _by_claims(await self._list()))

    async def claiming(self) -> frozenset[tuple[str, str, str]]:
        """Return (namespace, pod, container) of holders of such slices. Raises: Unavailable."""
        return frozenset(
            (pod.namespace, pod.name, container)
            for pod, container, _ in _by_claims(await self._list())
        )

    async def pods(self) -> frozenset[tuple[str, str]]:
        """Return (namespace, name) of all pods that the kubelet has. Raises: Unavailable."""
        answer = await self._list()
        return frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)

    async def _list(self) -> podresources_pb2.ListPodResourcesResponse:
        if not self.pod_resources.exists():
            raise Unavailable(f"{self.pod_resources}: no such socket")
        # A channel per call: a kept one would sit in its back-off after the kubelet came back.
        async with grpc.aio.insecure_channel(f"unix:{self.pod_resources}") as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]  # generated
            try:
                answer: podresources_pb2.ListPodResourcesResponse = await stub.List(
                    podresources_pb2.ListPodResourcesRequest(), timeout=POD_RESOURCES_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as exc:
                raise Unavailable(f"{self.pod_resources}: {exc.details()}") from exc
            return answer

    def _holdings_of(self, pods: Iterable[podresources_pb2.PodResources]) -> tuple[Holding, ...]:
        found = []
        for pod in pods:
            for container in pod.containers:
                ids = frozenset(
                    device_id
                    for devices in container.devices
                    if devices.resource_name == self.resource
                    for device_id in devices.device_ids
                )
                uid = self.uid_of(pod.namespace, pod.name) if ids else ""
                if uid:
                    found.append(
                        Holding(
                            pod_uid=uid,
                            container=container.name,
                            device_ids=ids,
                            namespace=pod.namespace,
                            pod_name=pod.name,
                        )
                    )
        return tuple(found)


def read_checkpoint(content: bytes, resource: str) -> tuple[Holding, ...]:
    """Return the checkpoint's entries for one resource.

    Its checksum is over Go's print of a Go value and is not checked. DeviceIDs is a list, or since
    Kubernetes 1.20 a map of lists by NUMA node.

    Raises: InvalidRequest when the file is damaged.
    """
    try:
        entries = _entries(content)
        return tuple(_holding(entry) for entry in entries if entry["ResourceName"] == resource)
    except _DAMAGE as exc:
        raise InvalidRequest(f"not a device checkpoint: {type(exc).__name__}: {exc}") from exc


def _by_claims(
    answer: podresources_pb2.ListPodResourcesResponse,
) -> Iterator[tuple[podresources_pb2.PodResources, str, str]]:
    """Yield (pod, container, nonce) of our slices by ResourceClaims."""
    for pod in answer.pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                for resource in claim.claim_resources:
                    for device in resource.cdi_devices:
                        nonce = nonce_of(device.name)
                        if resource.driver_name == DRIVER and nonce:
                            yield pod, container.name, nonce


def mounted_paths(content: bytes) -> frozenset[str]:
    """Return the host paths of all mounts in the checkpoint. Raises: InvalidRequest if damaged."""
    try:
        answers = [decode_answer(entry.get("AllocResp") or "") for entry in _entries(content)]
    except _DAMAGE as exc:
        raise InvalidRequest(f"not a device checkpoint: {type(exc).__name__}: {exc}") from exc
    return frozenset(mount.host_path for answer in answers for mount in answer.mounts)


_DAMAGE = (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError)


def _entries(content: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(content)["Data"]["PodDeviceEntries"] or []
    return found


def _holding(entry: dict[str, Any]) -> Holding:
    ids = entry["DeviceIDs"]
    lists = ids.values() if isinstance(ids, dict) else [ids]
    answer = kept_answer(entry.get("AllocResp") or "")
    return Holding(
        pod_uid=entry["PodUID"],
        container=entry["ContainerName"],
        device_ids=frozenset(device_id for part in lists for device_id in part),
        answer=answer if isinstance(answer, KeptAnswer) else None,
        foreign=answer if isinstance(answer, ForeignAnswer) else None,
    )


# Every look into the checkpoint reads all answers of the node, which never change. Twice the
# containers of a full node of 16 cards with 64 slots.
@lru_cache(maxsize=2048)
def kept_answer(text: str) -> KeptAnswer | ForeignAnswer | None:
    """Decode an AllocResp; None if there is none.

    Raises: ValueError when it is not base64 of an answer.
    """
    if not text:
        return None
    answer = decode_answer(text)
    mounts = {mount.container_path: mount.host_path for mount in answer.mounts}
    caches = [path for path in mounts.values() if PurePosixPath(path).parent.name == "containers"]
    cache_dir = PurePosixPath(caches[0]).name if caches else ""
    if LIMITS_MOUNT in mounts:
        return KeptAnswer(
            nonce=PurePosixPath(mounts[LIMITS_MOUNT]).name,
            cards=tuple(GpuUuid(card) for card in _visible(answer, mounts)),
            cache_dir=cache_dir,
        )
    nonces = [nonce for name in _cdi_names(answer) if (nonce := nonce_of(name))]
    if nonces:
        # Bound late: the answer is the nonce, and its cards are in its CDI file.
        return KeptAnswer(nonce=nonces[0], cards=(), cache_dir="")
    return ForeignAnswer(
        visible=_visible(answer, mounts),
        memory_mib=_memory_mib(answer.envs),
        core_percent=_core_percent(answer.envs),
        cache_dir=cache_dir,
    )


def decode_answer(text: str) -> api.ContainerAllocateResponse:
    """Decode the message in an AllocResp. Raises: ValueError if it is malformed."""
    try:
        return api.ContainerAllocateResponse.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError) as exc:
        raise ValueError(f"AllocResp: {exc}") from exc


def _visible(answer: api.ContainerAllocateResponse, mounts: Mapping[str, str]) -> tuple[str, ...]:
    named = answer.envs.get(VISIBLE, "")
    if named == VISIBLE_MOUNTS:
        folder = PurePosixPath(VISIBLE_MOUNTS)
        return tuple(PurePosixPath(p).name for p in mounts if PurePosixPath(p).parent == folder)
    if named:
        return tuple(card.strip() for card in named.split(",") if card.strip())
    # With both CDI strategies every card is named twice.
    names = dict.fromkeys(name for name in _cdi_names(answer) if name.startswith(CDI_CLASS))
    return tuple(name.removeprefix(CDI_CLASS) for name in names)


def _cdi_names(answer: api.ContainerAllocateResponse) -> list[str]:
    """Return the names in `cdi_devices`; for kubelets without that field, those in annotations."""
    names = [device.name for device in answer.cdi_devices]
    return names + [name for value in answer.annotations.values() for name in value.split(",")]


def _memory_mib(envs: Mapping[str, str]) -> tuple[int, ...]:
    """Return memory limits by position; empty unless all positions have one in HAMi's form."""
    found: dict[int, int] = {}
    for name, value in envs.items():
        position, amount = _MEMORY.fullmatch(name), _MIB.fullmatch(value)
        if position is not None:
            if amount is None:
                return ()
            found[int(position[1])] = int(amount[1])
    if sorted(found) != list(range(len(found))):
        return ()
    return tuple(found[position] for position in range(len(found)))


def _core_percent(envs: Mapping[str, str]) -> int | None:
    text = envs.get("CUDA_DEVICE_SM_LIMIT", "")
    return int(text) if text.isascii() and text.isdigit() else None
