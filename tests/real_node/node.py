"""A real node on this machine: containerd, runc, a bridge network and a real kubelet.

For checks of the device plugin and of libvgpu in a real environment without a GPU: the workload
image has the stand-in driver. Needs root. `scripts/real-kubelet` runs one by hand (with its own
control plane unless a kubeconfig is given); see tests/real_node/README.md.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hamilocal.supervisor.children import MARKER, send_signal
from hamilocal.supervisor.plan import ServerError, ServerPlan
from hamilocal.supervisor.state_file import marked_processes

from tests.processes import ServerProcess, running, start
from tests.real_node import containerd, kubelet
from tests.real_node.images import with_libraries, write_image
from tests.real_node.kubelet import DEVICE_PLUGINS, POD_RESOURCES, STATIC_PODS

WORKLOAD_IMAGE = "hami.local/workload:1"
_OURS = kubelet.ROOT / ".hami-real-node"
_BUSYBOX = Path("/usr/bin/busybox")
_LOGS = Path("/var/log/pods")
_TOOLS = ("bash", "cat", "ls", "sleep", "env", "head", "od", "id", "rm", "mv", "cp", "mkdir")
_LIBRARIES = Path("/usr/lib/hami-fakegpu")
# Where the kubelet, the network plugins and the runtime leave things with names of their own.
_SHARED = (Path("/run/netns"), _LOGS, Path("/var/log/containers"))
_CGROUPS = Path("/sys/fs/cgroup")
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1
# What a container runtime for real cards does with NVIDIA_VISIBLE_DEVICES, for the stand-in driver.
_ENTRY = b"""#!/bin/bash
export FAKEGPU_VISIBLE_DEVICES="${NVIDIA_VISIBLE_DEVICES:-none}"
exec "$@"
"""


@dataclass(slots=True, kw_only=True)
class RealNode:
    """A kubelet that serves; `socket` is containerd's."""

    name: str
    socket: Path
    kubelet: ServerProcess
    device_plugins: Path = DEVICE_PLUGINS
    pod_resources: Path = POD_RESOURCES

    @property
    def kubelet_pid(self) -> int:
        """Pid of the running kubelet."""
        return self.kubelet.value.pid

    @property
    def kubelet_log(self) -> Path:
        """Return the file with the kubelet's log of all runs."""
        return self.kubelet.plan.log_path

    @property
    def static_pods(self) -> Path:
        """Folder of manifests of pods that no scheduler sees."""
        return self.kubelet.plan.cwd / STATIC_PODS

    def restart_kubelet(self) -> None:
        """Kill the kubelet and start another on the same state; containers keep running."""
        self.kubelet.kill()
        self.kubelet = start(self.kubelet.plan)

    def container_pid(self, container_id: str) -> int:
        """The host's number of a container's first process, 0 if it does not run.

        `container_id` is that of a pod's status, "containerd://...".
        """
        wanted = container_id.removeprefix("containerd://")
        rows = [line.split() for line in containerd.ctr(self.socket, "tasks", "ls").splitlines()]
        return next((int(row[1]) for row in rows if row[0] == wanted), 0)

    def pod_log(self, namespace: str, pod: str, container: str, *, uid: str = "*") -> str:
        """Return the output of a container in all its runs ("" if it has not started).

        Without `uid` also of an earlier pod of that name whose files are still there.
        """
        files = sorted(_LOGS.glob(f"{namespace}_{pod}_{uid}/{container}/*.log"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        # "<time> stdout F <text>" (the log format of the container runtime interface)
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines if line.count(" ") >= 3)


def workload_image(archive: Path, *, native: Path | None) -> Path:
    """Write the image of test pods: bash, some tools and, of `native`, the stand-in driver.

    With `native` (the repository's folder of that name, built), programs run as
    `fakegpu-run vgpu-probe ...` and find libcuda.so.1 and libnvidia-ml.so.1.

    Raises:
        ServerError: a file is missing.
    """
    programs = [path for tool in _TOOLS if (path := Path("/bin") / tool).exists()]
    files: dict[str, Path | bytes] = {**with_libraries(programs)}
    if native is not None:
        build = native / "fakegpu" / "build"
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            files[str(_LIBRARIES / name)] = build / name
        files["/usr/bin/vgpu-probe"] = build / "vgpu-probe"
        files["/usr/bin/fakegpu-run"] = _ENTRY
    return write_image(
        archive,
        name=WORKLOAD_IMAGE,
        files=files,
        command=["/bin/bash"],
        environment={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(_LIBRARIES)},
    )


@contextmanager
def real_node(
    folder: Path,
    *,
    binary: Path,
    version: tuple[int, int],
    kubeconfig: Path,
    name: str,
    images: Sequence[Path] = (),
    runtime: Path | None = None,
    cdi: containerd.Cdi | None = None,
) -> Iterator[RealNode]:
    """A kubelet named `name` runs inside the `with` block, with these docker archives imported.

    `runtime`: folder of another containerd than the machine's own; `cdi`: its switch for that.

    Leaving the block ends every container and removes mounts, network and /var/lib/kubelet.

    Raises:
        ServerError: we are not root, a program is missing, or the machine has a kubelet already.
    """
    folder = folder.absolute()
    _claim_machine()
    before = _shared_entries()
    folder.mkdir(parents=True, exist_ok=True)
    plan = containerd.prepare(folder, programs=runtime, cdi=cdi)
    socket = Path(plan.url.removeprefix("unix://"))
    try:
        with running(_mark_plan(plan, folder)):
            pause = write_image(
                folder / "pause.tar",
                name=containerd.PAUSE_IMAGE,
                files={"/bin/busybox": _BUSYBOX},
                command=["/bin/busybox", "sleep", "2147483647"],
            )
            for archive in (pause, *images):
                containerd.ctr(socket, "images", "import", str(archive))
            node_plan = kubelet.prepare(
                folder / "kubelet",
                binary=binary,
                version=version,
                kubeconfig=kubeconfig,
                node=name,
                runtime=plan.url,
            )
            node = RealNode(name=name, socket=socket, kubelet=start(_mark_plan(node_plan, folder)))
            try:
                yield node
            finally:
                node.kubelet.stop()
                _end_containers(socket)
    finally:
        _leave_machine(folder, _shared_entries() - before)


def _mark_plan(plan: ServerPlan, folder: Path) -> ServerPlan:
    """Mark the program's children, such as containerd's shims, to find them again."""
    return replace(plan, env={**plan.env, MARKER: str(folder)})


def _claim_machine() -> None:
    if os.geteuid() != 0:
        raise ServerError("a real node needs root: it makes mounts, networks and cgroups")
    if not _BUSYBOX.exists():
        raise ServerError(f"{_BUSYBOX} is missing; install busybox-static")
    if kubelet.ROOT.exists() and not _OURS.exists() and any(kubelet.ROOT.iterdir()):
        raise ServerError(f"{kubelet.ROOT} belongs to another kubelet of this machine")
    kubelet.ROOT.mkdir(parents=True, exist_ok=True)
    _OURS.touch()


def _end_containers(socket: Path) -> None:
    """End the containers that the ended kubelet left running."""
    for task in containerd.ctr(socket, "tasks", "ls", "-q").split():
        _try("ctr", "-a", str(socket), "-n", containerd.NAMESPACE, "tasks", "kill", "-s", "9", task)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while "RUNNING" in containerd.ctr(socket, "tasks", "ls") and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _shared_entries() -> set[Path]:
    return {entry for folder in _SHARED if folder.exists() for entry in folder.iterdir()}


def _leave_machine(folder: Path, left_behind: set[Path]) -> None:
    for process in marked_processes(folder):
        send_signal(process, signal.SIGKILL)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4].replace("\\040", " ")) for line in mounts]
    for point in sorted(points, reverse=True):
        ours = point in left_behind or any(map(point.is_relative_to, (folder, kubelet.ROOT)))
        if ours:
            _try("umount", "-l", str(point))
    for entry in left_behind:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    for group in sorted(_CGROUPS.glob(f"**/{containerd.NAMESPACE}/**/"), reverse=True):
        _try("rmdir", str(group))  # fails, as it should, while anything runs in it
    _try("ip", "link", "delete", containerd.BRIDGE)
    shutil.rmtree(kubelet.ROOT, ignore_errors=True)


def _try(*argv: str) -> None:
    """Run a clean-up command; ignore failures, as the object may not exist."""
    try:
        subprocess.run(argv, capture_output=True, timeout=_STOP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
