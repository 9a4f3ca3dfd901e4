"""Make the Allocate answer of one container: variables, mounts and devices (protocol 5.7.1).

The answer is HAMi's in hami-core mode except for three mounts. The container's limits directory is
at `/etc/hami`. Its folder is read-only and the region in it a separate mount, so that a tenant
writes only one file of the host. `/tmp/vgpulock`, which HAMi lets all containers of a node write,
is omitted, as libvgpu does not use it. `device_list.py` passes the cards to the runtime. The
kubelet keeps the answer for the pod's whole life, so values that may change later are in the limits
directory.

The answer of a late-bound container is only a CDI name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from pathlib import PurePosixPath

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.annotations import is_true
from hamicommon.vendors.nvidia.guarded import CONTROL_ENV

from hami_node_agent.devices.device_list import (
    ContainerSpec,
    DeviceListPolicy,
    MountSpec,
    MpsPolicy,
    device_list,
    mps_envs,
    mps_mounts,
)
from hami_node_agent.grants.records import Record

LIMITS_MOUNT = "/etc/hami"
CDI_KIND = "hami.io/slice"
CDI_VERSION = "0.5.0"
"""First CDI version in which a name may contain a dot."""
CDI_ANNOTATION = "cdi.k8s.io/hami-slice"
"""Key of the annotation with CDI names; runtimes accept any key with this prefix."""
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


class NamedBy(Flag):
    """Places in the answer where a CDI name is written; a name in both counts once."""

    FIELD = auto()
    """Field `cdi_devices` of the device plugin API."""
    ANNOTATION = auto()
    """Annotation of the container, for kubelets without that field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """Settings of the node that affect every answer, and the paths in it."""

    container_base: PurePosixPath
    """Folder `/usr/local/vgpu` as the container sees it."""
    host_base: PurePosixPath
    """Folder `$HOOK_PATH/vgpu` on the host."""
    library: PurePosixPath
    """Path of libvgpu.so on the host, with its version."""
    enforced: bool = True
    """Whether containers get HAMi's variables; false for whole cards and MIG instances.

    Then the answer is like NVIDIA's, with the limits folder by which we recognise it.
    """
    may_be_plain: bool = False
    """Whether pods with whole cards only may run without the library."""
    whole_cards_plain: bool = False
    """Whether they do by default; a container's variable goes before."""
    mps: MpsPolicy | None = None
    """Paths for clients of the MPS daemon, in mode `mps`."""
    oversubscribe: bool = False
    log_level: str = "1"
    disable_core_limit: bool = False
    allow_disable_control: bool = False
    """Whether a container's variables may disable libvgpu or its core limit, as with HAMi."""
    licensed: bool = False
    """Whether `$HOOK_PATH/vgpu/license` exists on the host."""
    devices: DeviceListPolicy = field(default_factory=DeviceListPolicy)
    """Ways in which cards are passed to the runtime."""

    @property
    def cores_unlimited(self) -> bool:
        """Whether libvgpu does not limit cores, because it is off or MPS limits threads."""
        return self.disable_core_limit or self.mps is not None


def region_path(container_base: PurePosixPath, nonce: str) -> str:
    """Return the path of the region that a container's processes share, as they see it.

    The answer's environment and its limits file name the same.
    """
    return str(container_base / region_name(nonce))


def region_name(nonce: str) -> str:
    """Return the name of the region in the container's folder."""
    return f"{nonce}.cache"


def cache_dir_name(pod_uid: str, container: str) -> str:
    """Return the name of a container's folder under `$HOOK_PATH/vgpu/containers`."""
    return f"{pod_uid}_{container}"


def core_policy(container_env: Mapping[str, str], policy: AnswerPolicy) -> str:
    """Return the core policy: the node's switch, otherwise the webhook's or the pod's.

    A container's variable may make its limit stricter. It may lift the limit only if the node's
    setting allows it, as the pod's author writes it. An invalid policy counts as the strictest.
    """
    if policy.cores_unlimited:
        return "disable"
    asked = container_env.get("GPU_CORE_UTILIZATION_POLICY", "").strip().lower()
    if asked == "force" or (asked == "disable" and policy.allow_disable_control):
        return asked
    return "default" if asked in ("", "default", "disable") else "force"


# Pods with whole cards only may run without libvgpu: no other pod has a part of their cards, so the
# library has no limit to enforce. Programs then call the driver directly, and NVLink's peer-to-peer
# access works as on a plain node. HAMi's variable states the pod's choice.

NOT_WHOLE = (
    "and its pod no longer has only whole cards; delete the pod; its controller recreates it"
)


def are_whole_cards(shares: Iterable[DeviceShare], cards: Mapping[GpuUuid, GpuDevice]) -> bool:
    """Return whether each share is all of its card's memory, without a limit of cores."""
    every = tuple(shares)
    return bool(every) and all(_is_whole(share, cards.get(share.uuid)) for share in every)


def runs_plain(
    shares: Iterable[DeviceShare],
    cards: Mapping[GpuUuid, GpuDevice],
    env: Mapping[str, str],
    policy: AnswerPolicy,
) -> bool:
    """Return whether a container runs without the library; `shares`: of its pod's containers."""
    asked = env.get(CONTROL_ENV)
    wanted = policy.whole_cards_plain if asked is None else is_true(asked)
    return wanted and policy.may_be_plain and are_whole_cards(shares, cards)


def _is_whole(share: DeviceShare, card: GpuDevice | None) -> bool:
    return (
        card is not None
        and not share.detail
        and share.memory_mib >= card.memory_mib
        and share.core_percent in (0, 100)
    )


def late_answer(nonce: str, by: NamedBy = NamedBy.FIELD) -> ContainerSpec:
    """Return the answer for a late-bound container: a CDI name, which is defined later."""
    name = f"{CDI_KIND}={nonce}"
    return ContainerSpec(
        envs={},
        mounts=(),
        annotations={CDI_ANNOTATION: name} if NamedBy.ANNOTATION in by else {},
        cdi_devices=(name,) if NamedBy.FIELD in by else (),
    )


def nonce_of(name: str) -> str | None:
    """Return the nonce in a qualified CDI name; None if the name is not ours."""
    kind, equals, nonce = name.partition("=")
    return nonce if equals and kind == CDI_KIND else None


def container_response(
    record: Record,
    *,
    limits_dir: str,
    container_env: Mapping[str, str],
    policy: AnswerPolicy,
) -> ContainerSpec:
    """Return the answer for the container of `record`."""
    listed = device_list(
        record.mig_uuids or record.cards, response_id=record.nonce, policy=policy.devices
    )
    if record.plain or not policy.enforced:
        limits = _mount(LIMITS_MOUNT, limits_dir, read_only=True)
        return replace(listed, mounts=(*listed.mounts, limits))
    envs = {**listed.envs, **_envs(record, policy)}
    mounts = listed.mounts + _mounts(record, limits_dir, container_env, policy)
    if policy.mps is not None:
        mounts += mps_mounts(policy.mps)
        envs |= mps_envs(record.shares)
    return replace(listed, envs=envs, mounts=mounts)


def _envs(record: Record, policy: AnswerPolicy) -> dict[str, str]:
    envs = {}
    for position, share in enumerate(record.shares):
        envs[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] = f"{share.memory_mib}m"
    envs["CUDA_DEVICE_SM_LIMIT"] = str(record.shares[0].core_percent)
    envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = region_path(policy.container_base, record.nonce)
    if policy.oversubscribe:
        envs["CUDA_OVERSUBSCRIBE"] = "true"
    if policy.log_level:
        envs["LIBCUDA_LOG_LEVEL"] = policy.log_level
    if policy.disable_core_limit:
        envs["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return envs


def _mounts(
    record: Record, limits_dir: str, container_env: Mapping[str, str], policy: AnswerPolicy
) -> tuple[MountSpec, ...]:
    inside, host = policy.container_base, policy.host_base
    caches = host / "containers" / record.cache_dir
    region = region_name(record.nonce)
    mounts = [
        _mount(str(inside / "libvgpu.so"), str(policy.library), read_only=True),
        _mount(str(inside), str(caches), read_only=True),
        _mount(str(inside / region), str(caches / region), read_only=False),
        _mount(LIMITS_MOUNT, limits_dir, read_only=True),
    ]
    asks_for_none = container_env.get("CUDA_DISABLE_CONTROL") in _TRUE
    if not (asks_for_none and policy.allow_disable_control):
        mounts.append(_mount("/etc/ld.so.preload", str(host / "ld.so.preload"), read_only=True))
    if policy.licensed:
        mounts.append(_mount("/tmp/license", str(host / "license"), read_only=True))
        mounts.append(_mount("/usr/bin/vgpuvalidator", str(host / "vgpuvalidator"), read_only=True))
    return tuple(mounts)


def _mount(container_path: str, host_path: str, *, read_only: bool) -> MountSpec:
    return MountSpec(container_path=container_path, host_path=host_path, read_only=read_only)
