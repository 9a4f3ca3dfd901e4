"""A node-agent: the real use cases of `hami_node_agent`, on simulated wires and disk."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast
from uuid import uuid4

from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.adoption.adopted import AdoptedAnswers
from hami_node_agent.adoption.holdings import HoldingsService
from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.cleanup.garbage_collection import Processes, Sweeper
from hami_node_agent.deviceplugin.readiness import ReadinessService
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.feed import GrantsFeed
from hami_node_agent.grants.ports import KubeletState
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.reports import Reports, send_reports
from hami_node_agent.grants.state import NodeState, Signal
from hami_node_agent.inventory.publisher import InventoryPublisher
from hamicommon.bus.permissions import agent_user
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.grants.signing import public_key

from tests.simulation.cluster.api_server import ApiServer, Connection
from tests.simulation.cluster.processes import Process, Weather
from tests.simulation.cluster.replica import KEY
from tests.simulation.stores.bus import BusConnection
from tests.simulation.stores.hub import Hub

T = TypeVar("T")
RESOURCE = "nvidia.com/gpu"
LIMITS = Path("/limits")
ANSWERS = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so"),
)


class Disk:
    """The part of a node that survives its agent: the state file and the limits directories."""

    def __init__(self) -> None:
        self.state = AgentState()
        self.limits: dict[str, tuple[DeviceShare, ...]] = {}

    def save(self, state: AgentState) -> None:
        """See the port StateStore."""
        self.state = state

    def limits_dir(self, nonce: str) -> Path:
        """See the port ContainerFiles."""
        return LIMITS / nonce

    def write_limits(self, record: Record) -> None:
        """See the port ContainerFiles."""
        self.limits[record.nonce] = record.shares

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """See the port ContainerFiles."""

    def keep_cache_dir(self, name: str, nonce: str) -> None:
        """See the port ContainerFiles."""

    def write(self, nonce: str, spec: ContainerSpec) -> None:
        """See the port DeviceDescriptions: no container here binds late."""
        raise AssertionError(f"{nonce} is described: {spec}")

    def source_of(self, nonce: str, container_path: str) -> str:
        """See the port DeviceDescriptions: nothing is described."""
        del nonce, container_path
        return ""

    def remove_pod(self, cache_dirs: Iterable[str], nonces: Iterable[str]) -> None:
        """See `cleanup.garbage_collection.PodFiles`."""
        del cache_dirs
        for nonce in nonces:
            self.limits.pop(nonce, None)

    def cdi_nonces(self) -> frozenset[str]:
        """No slices by CDI."""
        return frozenset()

    def remove_strays(
        self, *, nonces: frozenset[str], cache_dirs: frozenset[str], older_than_s: float
    ) -> None:
        """See sweeping.StrayFiles; histories are shorter than `older_than_s`."""


class Cards:
    """The node's cards, as `hami_node_agent.inventory.tracker.CardTracker` shows them."""

    def __init__(self, devices: Iterable[GpuDevice]) -> None:
        self.changed = Signal()
        self.pair_scores: Mapping[GpuUuid, Mapping[GpuUuid, int]] = {}
        self._devices = {device.uuid: device for device in devices}

    def devices(self) -> tuple[GpuDevice, ...]:
        """By index."""
        return tuple(self._devices.values())

    def replace(self, device: GpuDevice) -> None:
        """A card fell sick, or is well again."""
        self._devices[device.uuid] = device
        self.changed.notify()

    def by_uuid(self) -> Mapping[GpuUuid, GpuDevice]:
        """For `NodeState.cards`."""
        return dict(self._devices)


class _Plugin:
    def __init__(self) -> None:
        self.reported_at: float | None = None

    def listened_for_s(self) -> float | None:
        """Return the seconds since it listened, as the device plugin does."""
        if self.reported_at is None:
            return None
        return asyncio.get_running_loop().time() - self.reported_at


class Agent:
    """One process of the node-agent."""

    def __init__(
        self,
        node: str,
        *,
        number: int,
        seed: str,
        weather: Weather,
        hub: Hub,
        api: ApiServer,
        kubelet: KubeletState,
        processes: Processes,
        disk: Disk,
        cards: Cards,
    ) -> None:
        process = self.process = Process(f"agent-{node}-{number}", seed, weather)
        bus = self._bus = BusConnection(hub, process, weather, seed)
        self._hub, self._node = hub, node
        connection = Connection(api, process, weather, seed)
        state = self.state = NodeState(disk, disk.state)
        state.cards = cards.by_uuid()
        pods = NodePods(cast(Any, connection), node=node, resource=RESOURCE, key=public_key(KEY))
        wired = process.wire(kubelet, "kubelet")
        reports = Reports(node)
        feed = GrantsFeed(bus, state, reports=reports, node=node, snapshot_interval_s=15.0)
        self.plugin = _Plugin()
        ports = NodePorts(
            state=state, kubelet_state=wired, source=feed, pods=pods, files=disk, reports=reports
        )
        slices = DescribedSlices(ports, devices=disk, answers=ANSWERS)
        self._allocating = Allocate(ports, slices=slices, node_name=node)
        late = LateBinding(ports, slices=slices, is_used=False)
        self._prestarting = PreStart(ports, slices=slices, late=late)
        adopted = AdoptedAnswers(state, kubelet_state=wired)
        sweeper = Sweeper(
            state,
            pods=pods,
            kubelet_state=wired,
            processes=processes,
            files=disk,
            reports=reports,
            interval_s=2.0,
        )
        publisher = InventoryPublisher(
            cast(Any, cards), bus, node=node, agent_id=str(uuid4()), heartbeat_s=10.0
        )
        readiness = ReadinessService(
            cast(Any, bus),
            cast(Any, self.plugin),
            node=node,
            reachable=lambda: True,
            not_ready_reason=str,
            on_ready=lambda: None,
            take=feed.take,
        )
        holdings = HoldingsService(cast(Any, bus), state, kubelet_state=wired, pods=pods, node=node)
        for loop in (
            pods.run(),
            feed.run(),
            adopted.run(),
            readiness.run(),
            holdings.run(),
            publisher.run(),
            send_reports(state, bus, node=node),
            sweeper.run(),
        ):
            process.start(loop)

    async def kill(self) -> None:
        """SIGKILL, wherever it is."""
        self._hub.leave(self._bus)
        self._hub.forget(agent_user(self._node))
        await self.process.kill()

    def prefer(self, available: list[str], size: int) -> tuple[str, ...]:
        """GetPreferredAllocation."""
        return self._allocating.prefer(available=available, must_include=(), size=size)

    async def allocate(self, ids: frozenset[str]) -> str:
        """Allocate for one container; returns the nonce of the limits directory in the answer."""
        [spec] = await self._serve(lambda: self._allocating.allocate([ids]))
        [mount] = [mount for mount in spec.mounts if mount.container_path == "/etc/hami"]
        return PurePosixPath(mount.host_path).name

    async def pre_start(self, ids: frozenset[str]) -> None:
        """PreStartContainer."""
        await self._serve(lambda: self._prestarting.check(ids))

    async def _serve(self, work: Callable[[], Awaitable[T]]) -> T:
        """One gRPC call of the kubelet. Raises: ConnectionError when the agent dies in the call."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            try:
                await self.process.hop(0.001)
                result = await work()
            except asyncio.CancelledError:
                if not answer.done():
                    answer.set_exception(ConnectionError("the agent died"))
                raise
            except Exception as exc:  # noqa: BLE001 - raised again where the kubelet waits
                if not answer.done():
                    answer.set_exception(exc)
            else:
                if not answer.done():
                    answer.set_result(result)

        self.process.start(serve())
        return await answer
