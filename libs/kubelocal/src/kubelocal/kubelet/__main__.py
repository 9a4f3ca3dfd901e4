"""Run `python -m kubelocal.kubelet` until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hamicommon.errors import Conflict, HamiError, InvalidRequest
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.informer import Informer
from hamicommon.telemetry.logs import JsonFormatter

from kubelocal.events import EventRecorder
from kubelocal.kubelet.admission import PodAdmission
from kubelocal.kubelet.containers.environment import MountMode, OwnDriver, StandInDriver
from kubelocal.kubelet.containers.runtime import ProcessRuntime, stop_containers
from kubelocal.kubelet.containers.worker import BackoffRule, Machine
from kubelocal.kubelet.devices import checkpoint
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.plugins import PluginClient
from kubelocal.kubelet.kubelet import Kubelet, Shuffle
from kubelocal.kubelet.node import NodeIdentity, NodeReporter, allocatable
from kubelocal.kubelet.options import KubeletOptions, parse
from kubelocal.kubelet.sockets import PodDevices, serve_pod_resources, serve_registration, snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletLayout:
    """Folders below the kubelet's root, named like those below /var/lib/kubelet."""

    device_plugins: Path
    pod_resources: Path
    pods: Path
    scratch: Path


def lay_out(root: Path) -> KubeletLayout:
    """Create the folders; old sockets are removed, the checkpoint stays.

    The kubelet removes them too: a plugin sees its socket vanish and registers again.
    """
    layout = KubeletLayout(
        device_plugins=root / "device-plugins",
        pod_resources=root / "pod-resources",
        pods=root / "pods",
        scratch=root / "scratch",
    )
    for directory in (layout.device_plugins, layout.pod_resources, layout.pods, layout.scratch):
        directory.mkdir(parents=True, exist_ok=True)
    for entry in layout.device_plugins.iterdir():
        if entry.name != checkpoint.FILE_NAME and not entry.is_dir():
            entry.unlink(missing_ok=True)
    return layout


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Lock the root folder for this process.

    Raises: Conflict when another kubelet works there.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / "kubelet.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise Conflict(f"--root {root}: another kubelet uses this folder") from exc
        yield


async def run(options: KubeletOptions) -> None:
    """Run the kubelet until cancelled.

    Raises: InvalidRequest for options that can't work, Conflict when the root is in use.
    """
    with only_one(options.root):
        layout = lay_out(options.root)
        runtime, mode = await _runtime(options, layout)
        try:
            async with open_kube_api(options.kubeconfig) as api:
                await _serve(options, layout, runtime, mode, api)
        finally:
            if options.stop_containers_on_exit:
                await stop_containers(options.root)


async def _runtime(
    options: KubeletOptions, layout: KubeletLayout
) -> tuple[ProcessRuntime, MountMode]:
    launcher = options.native_dir / "launcher" / "build" / "hami-launcher"
    if not launcher.exists():
        raise InvalidRequest(f"{launcher} is missing: run `make native`")
    runtime = ProcessRuntime(launcher, layout.pods)
    if options.mounts != "auto":
        return runtime, MountMode(options.mounts)
    mode, reason = await runtime.detect_mount_mode(layout.scratch)
    if reason:
        logger.warning("Running containers without mounts of their own", extra={"reason": reason})
    return runtime, mode


async def _serve(
    options: KubeletOptions,
    layout: KubeletLayout,
    runtime: ProcessRuntime,
    mode: MountMode,
    api: KubeApi,
) -> None:
    """Create the parts and run them; some refer to each other."""
    identity = NodeIdentity(
        name=options.node,
        cpu=options.cpu,
        memory=options.memory,
        pods=options.pods,
        mounts=mode.value,
        root=str(options.root),
    )
    chance = random.Random(options.seed)
    allocator = DeviceAllocator(
        checkpoint_file=layout.device_plugins / checkpoint.FILE_NAME,
        chance=chance,
        on_counts=lambda: reporter.report_soon(),
        active_pods=lambda: kubelet.active_pods(),
    )
    reporter = NodeReporter(api, identity, allocator.book.counts)
    recorder = EventRecorder(api, lambda _: {"component": "kubelet", "host": options.node})
    admission = PodAdmission(
        allocator,
        allocatable=lambda: allocatable(identity, allocator.book.counts()),
        labels=lambda: reporter.labels,
        delay_s=options.admission_delay_ms / 1000,
    )
    machine = _machine(options, runtime, mode, allocator, recorder)
    shuffle = None
    if options.shuffle_window_ms:
        shuffle = Shuffle(window_s=options.shuffle_window_ms / 1000, chance=chance)

    def on_register(resource: str, endpoint: str) -> None:
        plugin = PluginClient(
            layout.device_plugins / endpoint, allocate_timeout_s=options.allocate_timeout_s
        )
        tasks.create_task(allocator.serve_plugin(resource, plugin), name=resource)

    def list_pods() -> list[PodDevices]:
        allocator.collect()
        return snapshot(kubelet.listed_pods(), allocator.book)

    async with asyncio.TaskGroup() as tasks:
        kubelet = Kubelet(machine, api, admission, tasks, shuffle=shuffle)
        informer = Informer(
            api,
            "/api/v1/pods",
            on_upsert=kubelet.on_upsert,
            on_delete=kubelet.on_delete,
            fieldSelector=options.pods_selector,
        )
        allocator.restore()
        async with (
            serve_pod_resources(layout.pod_resources / "kubelet.sock", list_pods),
            serve_registration(layout.device_plugins / "kubelet.sock", on_register),
        ):
            tasks.create_task(reporter.run(), name="node")
            tasks.create_task(recorder.run(), name="events")
            tasks.create_task(allocator.watch_stopped(), name="stopped plugins")
            tasks.create_task(informer.run(), name="pods")
            await kubelet.run(informer.synced)


def _machine(
    options: KubeletOptions,
    runtime: ProcessRuntime,
    mode: MountMode,
    allocator: DeviceAllocator,
    recorder: EventRecorder,
) -> Machine:
    driver_dir = options.native_dir / "fakegpu" / "build"
    return Machine(
        node=options.node,
        allocator=allocator,
        runtime=runtime,
        recorder=recorder,
        driver=OwnDriver(tools_dir=driver_dir, library_dir=options.driver_folder)
        if options.own_driver
        else StandInDriver(library_dir=driver_dir, config=options.fakegpu_config),
        mode=mode,
        pathmap_library=driver_dir / "libpathmap.so",
        backoff=BackoffRule(initial_s=options.backoff_initial_s, longest_s=options.backoff_max_s),
        sync_retry_s=options.sync_retry_s,
        cdi_dir=options.cdi_dir,
    )


async def _run(options: KubeletOptions) -> None:
    task = asyncio.ensure_future(run(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("Stopped", extra={"node": options.node})


def main() -> int:
    """Run one kubelet; return 1 for an error that the user can repair."""
    options = parse()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter("hamictl-kubelet"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        asyncio.run(_run(options))
    except HamiError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
