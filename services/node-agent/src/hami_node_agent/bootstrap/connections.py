"""Open the agent's connections: bus, API server, driver, host's files, and its own state.

The driver's cards are offered as slices, or as the MIG instances that they have or are cut into.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from uuid import uuid4

from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import agent_user
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.fault_injection import Faults, around, faults_of
from hamicommon.grants.grant import load_public_key
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import FailpointSettings

from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.host.device_files import CardNames, mig_files, require_imex
from hami_node_agent.adapters.host.files import HostFiles
from hami_node_agent.adapters.kubelet.state import KubeletStateReader
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.adapters.nvml.library import NvmlProbe, open_nvml
from hami_node_agent.adapters.nvml.mig import NvmlMigDriver, read_layout
from hami_node_agent.adapters.state_file import StateFile
from hami_node_agent.config.settings import Settings
from hami_node_agent.deviceplugin.mig_plugin import MigCards, MigPlugin
from hami_node_agent.devices.device_list import DeviceListPolicy
from hami_node_agent.devices.health import xid_policy
from hami_node_agent.devices.mig_partition import MIG, MigInstance, MigLayout, mig_resources
from hami_node_agent.devices.ports import DeviceProbe, MigDriver
from hami_node_agent.grants.state import NodeState
from hami_node_agent.inventory.probes import FilteredProbe, MigProbe

logger = logging.getLogger(__name__)

# With fail_on_init_error off; HAMi's plugin waits as long after a failed start.
DRIVER_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigWiring:
    """Parts for cutting cards into MIG instances on demand."""

    driver: MigDriver
    probe: MigProbe
    minors: Mapping[GpuUuid, int | None]
    """Minor number of each card's device file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConnection:
    """Driver with its cards and links."""

    probe: DeviceProbe
    """Probe of the cards that are offered in slices."""
    devices: DeviceListPolicy
    names: CardNames
    """Indexes and files of cards, which must be updated when cards are added."""
    mig: MigCards | None = None
    mig_plugins: Mapping[str, MigPlugin]
    """Plugins for existing MIG instances, by resource name."""
    cutting: MigWiring | None = None
    """Parts for cutting cards, in operating mode `mig`."""


async def open_driver(settings: Settings, stack: AsyncExitStack) -> DriverConnection:
    """Open the driver.

    Raises: Unavailable without one; InvalidRequest if MIG is not as configured.
    """
    nvml = await _open(settings, stack)
    shown = FilteredProbe(nvml, frozenset(settings.hidden_devices))
    names = CardNames(settings.dev_root)
    names.learn(await shown.cards())
    policy = await _device_list(settings, names)
    if settings.operating_mode == MIG:
        return await _cut(settings, nvml, shown, names, policy)
    layout = await _layout(settings, nvml, shown)
    resources = mig_resources(layout, settings.mig_strategy, settings.resource_name)
    if not layout.mig_cards:
        return DriverConnection(probe=shown, devices=policy, names=names, mig_plugins={})
    mig = MigCards(
        shown,
        layout.mig_cards,
        xids=xid_policy(settings.health_checks),
        probe_interval_s=settings.probe_interval_s,
        xid_quiet_s=settings.xid_quiet_s,
    )
    return DriverConnection(
        probe=FilteredProbe(shown, layout.mig_cards, on_hidden_xid=mig.on_xid),
        devices=policy,
        names=names,
        mig=mig,
        mig_plugins={
            resource: MigPlugin(
                instances,
                mig,
                policy=_of_instances(policy, instances, settings),
                numa_topology=settings.enable_numa_topology,
            )
            for resource, instances in resources.items()
        },
    )


async def _cut(
    settings: Settings,
    nvml: NvmlProbe,
    shown: FilteredProbe,
    names: CardNames,
    policy: DeviceListPolicy,
) -> DriverConnection:
    driver = NvmlMigDriver(nvml)
    probe = MigProbe(shown, driver, allowlist=settings.mig_profile_allowlist)
    probe.minors |= {card.uuid: card.minor for card in await shown.cards()}
    return DriverConnection(
        probe=probe,
        devices=policy,
        names=names,
        mig_plugins={},
        cutting=MigWiring(driver=driver, probe=probe, minors=probe.minors),
    )


async def _open(settings: Settings, stack: AsyncExitStack) -> NvmlProbe:
    while True:
        nvml = open_nvml(
            sysfs_root=settings.sysfs_root,
            fallback_memory_mib=settings.preconfigured_device_memory_mib,
            is_mig_cut=settings.operating_mode == MIG,
        )
        try:
            return await stack.enter_async_context(nvml)
        except Unavailable as exc:
            if settings.fail_on_init_error:
                raise
            logger.warning("Retrying to load the driver", extra={"error": str(exc)})
            await asyncio.sleep(DRIVER_RETRY_S)


async def _layout(settings: Settings, nvml: NvmlProbe, probe: DeviceProbe) -> MigLayout:
    if settings.mig_strategy == "none":
        return MigLayout()
    cards = await probe.cards()
    return await nvml.ask("MIG", lambda: read_layout(cards))


async def _device_list(settings: Settings, names: CardNames) -> DeviceListPolicy:
    passed = settings.pass_device_specs
    if settings.imex_required:
        await asyncio.to_thread(require_imex, settings.imex_channel_ids, settings.dev_root)
    return DeviceListPolicy(
        strategies=frozenset(settings.device_list_strategy),
        id_strategy=settings.device_id_strategy,
        index_of=names.index_of,
        imex_channels=settings.imex_channel_ids,
        features=settings.features,
        device_files=names.control_files if passed else None,
        card_files=names.card_files if passed else None,
    )


def _of_instances(
    policy: DeviceListPolicy, instances: tuple[MigInstance, ...], settings: Settings
) -> DeviceListPolicy:
    # The runtime knows instances by uuid, or by "<card>:<instance>", which NVML does not report.
    policy = replace(policy, id_strategy="uuid")
    if not settings.pass_device_specs:
        return policy
    proc_root = settings.proc_root or Path("/proc")
    return replace(policy, card_files=mig_files(instances, settings.dev_root, proc_root))


DISTRIBUTION = "hami-node-agent"
CONTAINER_BASE = PurePosixPath("/usr/local/vgpu")
"""Folder in which containers see library and region, where admission allows no mounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConnections:
    """Connections and files of the agent."""

    api: KubeApi
    bus: Bus
    driver: DriverConnection
    cdi: CdiFiles
    files: HostFiles
    library: Path
    pods: NodePods
    kubelet_state: KubeletStateReader
    state: NodeState
    agent_id: str
    faults: Faults | None = None

    def mig_driver(self, driver: MigDriver) -> MigDriver:
        """Return the driver that cuts cards, with injected faults for tests."""
        return around(driver, "node_mig", self.faults)


async def open_connections(
    settings: Settings, stack: AsyncExitStack, bulkhead: Bulkhead
) -> AgentConnections:
    """Open all; bus and API server may be unavailable. Raises: Unavailable, InvalidRequest."""
    faults = faults_of(FailpointSettings().file)
    cdi = CdiFiles(settings.cdi_dir)
    files = HostFiles(
        base=settings.hook_path / "vgpu",
        state_dir=settings.state_dir,
        oversubscribe=settings.device_memory_scaling > 1,
        container_base=CONTAINER_BASE,
        cdi=cdi,
    )
    library = await asyncio.to_thread(
        files.install,
        settings.library_path,
        version=version(DISTRIBUTION),
        preload_path=str(CONTAINER_BASE / "libvgpu.so"),
    )
    key_file = settings.grant_public_key_file
    key = None if key_file is None else await asyncio.to_thread(load_public_key, key_file)
    store = StateFile(settings.state_dir / "state.json")
    saved = await asyncio.to_thread(store.load)
    driver = await open_driver(settings, stack)
    api = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
    bus = around(
        await stack.enter_async_context(open_bus(settings.nats, agent_user(settings.node_name))),
        "node_bus",
        faults,
    )
    pods = NodePods(
        api, node=settings.node_name, resource=settings.resource_name, key=key, bulkhead=bulkhead
    )
    state = NodeState(around(store, "node_state", faults, blocking=True), saved)
    kubelet_state = KubeletStateReader(
        checkpoint=settings.checkpoint_path,
        pod_resources=settings.pod_resources_socket,
        resource=settings.resource_name,
        uid_of=pods.uid_of,
        api_uid=pods.api_uid,
        card_at=state.card_at,
    )
    return AgentConnections(
        api=api,
        bus=bus,
        driver=driver,
        cdi=cdi,
        files=around(files, "node_files", faults, blocking=True),
        library=library,
        pods=around(pods, "node_pods", faults),
        kubelet_state=around(kubelet_state, "node_kubelet_state", faults),
        state=state,
        agent_id=str(uuid4()),
        faults=faults,
    )
