"""Connect the device book to plugins: registration, Allocate, PreStartContainer.

`admission.py` allocates, one container after the other; `containers/worker.py` asks for the start.
The checkpoint is written after every change, as the kubelet does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices import checkpoint, state
from kubelocal.kubelet.devices.plugins import PluginClient, decode_answer, merge_answers
from kubelocal.kubelet.devices.state import AdmissionError, AllocateAnswer, DeviceBook, PluginError

logger = logging.getLogger(__name__)


class DeviceAllocator:
    """Devices of one node; `on_counts` is called when capacity or allocatable may have changed."""

    def __init__(
        self,
        *,
        checkpoint_file: Path,
        chance: random.Random,
        on_counts: Callable[[], None],
        active_pods: Callable[[], Iterable[str] | None],
    ) -> None:
        self.book = DeviceBook()
        self._checkpoint_file = checkpoint_file
        self._chance = chance
        self._on_counts = on_counts
        self._active_pods = active_pods
        self._plugins: dict[str, PluginClient] = {}
        # Held from the choice of ids to the plugin's answer, so that no other task may choose.
        self._choosing = asyncio.Lock()

    def restore(self) -> None:
        """Read the checkpoint of an earlier kubelet, if there is one."""
        if not self._checkpoint_file.exists():
            return
        try:
            allocations, resources = checkpoint.decode(
                self._checkpoint_file.read_bytes(), decode_answer
            )
        except InvalidRequest as exc:
            logger.warning("Failed to read the checkpoint", extra={"error": str(exc)})
            return
        self.book.restore(allocations, resources, now_s=time.monotonic())

    def write_checkpoint(self) -> None:
        """Write the checkpoint atomically."""
        temporary = self._checkpoint_file.with_name(f".{self._checkpoint_file.name}")
        temporary.write_bytes(checkpoint.encode(self.book.allocations(), self.book.healthy_ids()))
        temporary.replace(self._checkpoint_file)

    async def serve_plugin(self, resource: str, plugin: PluginClient) -> None:
        """Serve one registration: read options, then device lists until the stream ends."""
        try:
            self.book.register(resource, await plugin.options())
            self._plugins[resource] = plugin
            logger.info("Registered a device plugin", extra={"resource": resource})
            async for devices in plugin.device_lists():
                if self._plugins.get(resource) is not plugin:
                    break
                self.book.update(resource, devices)
                self.write_checkpoint()
                self._on_counts()
        except PluginError as exc:
            logger.warning(
                "A device plugin failed; its devices are unhealthy until it registers again",
                extra={"resource": resource, "error": str(exc)},
            )
        finally:
            if self._plugins.get(resource) is plugin:
                del self._plugins[resource]
                self.book.lose(resource, now_s=time.monotonic())
                self._on_counts()
            await plugin.close()

    def collect(self) -> None:
        """Free the ids of ended pods, once the pods are known.

        As in the kubelet's UpdateAllocatedDevices, which does nothing before its sources are ready.
        """
        active = self._active_pods()
        if active is not None:
            self.book.release_all_but(active)

    async def allocate(self, pod: Json, container: Json) -> None:
        """Allocate devices to a container, unless it has them already.

        Raises: AdmissionError.
        """
        async with self._choosing:
            await self._allocate_all(pod, container)

    async def _allocate_all(self, pod: Json, container: Json) -> None:
        pod_uid, name = pod_spec.uid(pod), container["name"]
        self.book.begin(pod_uid)
        changed = False
        for resource, size in pod_spec.limits(container).items():
            if self.book.serves(resource):
                self.collect()
                changed |= await self._allocate(pod_uid, name, resource, size)
        if pod_spec.is_ordinary_init(pod, container):
            self.book.offer_for_reuse(pod_uid, name)
        else:
            self.book.withdraw_from_reuse(pod_uid, name)
        if changed:
            self.write_checkpoint()

    async def _allocate(self, pod_uid: str, container: str, resource: str, size: int) -> bool:
        request = self.book.request(pod_uid, container, resource, size)
        if request is None:
            return False
        plugin, options = self._plugins.get(resource), self.book.options(resource)
        if plugin is None:
            raise AdmissionError(f"endpoint of {resource} has been stopped")
        try:
            preferred: list[str] = []
            if not request.complete and options is not None and options.preferred_allocation:
                everything = sorted(request.available | request.preset)
                self._chance.shuffle(everything)
                preferred = await plugin.preferred_ids(everything, sorted(request.preset), size)
            ids = state.choose(request, preferred, self._chance)
            shuffled = sorted(ids)
            self._chance.shuffle(shuffled)
            answer = await plugin.allocate(shuffled)
        except PluginError as exc:
            raise AdmissionError(str(exc)) from exc
        self.book.keep(request, ids, answer)
        return True

    async def pre_start(self, pod: Json, container: Json) -> AllocateAnswer:
        """Call PreStartContainer of plugins that ask for it; return what the container gets.

        Raises: PluginError if a plugin forbids the start; AdmissionError if devices are missing and
        not available.
        """
        pod_uid, name = pod_spec.uid(pod), container["name"]
        missing = False
        for resource, size in pod_spec.limits(container).items():
            # As in the kubelet (GetDeviceRunContainerOptions): a request for 0 holds none.
            if size and self.book.serves(resource):
                await self._pre_start(pod_uid, name, resource)
                held = self.book.of_container(pod_uid, name)
                missing |= all(allocation.resource != resource for allocation in held)
        if missing:
            # The plugin registered after the pod's admission; the kubelet allocates now.
            await self.allocate(pod, container)
        return merge_answers([a.answer for a in self.book.of_container(pod_uid, name)])

    async def _pre_start(self, pod_uid: str, container: str, resource: str) -> None:
        options = self.book.options(resource)
        # As in the kubelet: no call between its own restart and the plugin's registration.
        if options is None or not options.pre_start_required:
            return
        held = [a for a in self.book.of_container(pod_uid, container) if a.resource == resource]
        if not held:
            raise PluginError(
                f"no devices found allocated in local cache for pod {pod_uid}, "
                f"container {container}, resource {resource}"
            )
        plugin = self._plugins.get(resource)
        if plugin is None:
            raise PluginError(
                "device plugin PreStartContainer rpc failed with err: "
                f"endpoint of {resource} has been stopped"
            )
        ids = sorted(held[0].ids)
        self._chance.shuffle(ids)
        await plugin.pre_start(ids)

    async def watch_stopped(self, period_s: float = 10.0) -> None:
        """Drop the capacity of plugins that have been gone for long, until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            if self.book.retire_stopped(now_s=time.monotonic()):
                self.write_checkpoint()
                self._on_counts()
