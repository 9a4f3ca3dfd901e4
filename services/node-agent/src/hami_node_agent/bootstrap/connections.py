"""What the agent talks to and writes: connections, the driver, the host's files, its own state."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from uuid import uuid4

from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import agent_user
from hamicommon.fault_injection import Faults, around, faults_of
from hamicommon.grants.grant import load_public_key
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import FailpointSettings

from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.host.files import HostFiles
from hami_node_agent.adapters.kubelet.pod_resources import KubeletStateReader
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.adapters.state_file import StateFile
from hami_node_agent.bootstrap.driver import DriverConnection, open_driver
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.ports import MigDriver
from hami_node_agent.grants.state import NodeState

DISTRIBUTION = "hami-node-agent"
CONTAINER_BASE = PurePosixPath("/usr/local/vgpu")
"""Where containers see library and region; admission keeps tenants' mounts away from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConnections:
    """Connections and files."""

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
        """The driver that cuts cards, with the faults of tests around it."""
        return around(driver, "node_mig", self.faults)


async def open_connections(
    settings: Settings, stack: AsyncExitStack, bulkhead: Bulkhead
) -> AgentConnections:
    """Opens all; the bus and the API server may be away. Raises: Unavailable, InvalidRequest."""
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
