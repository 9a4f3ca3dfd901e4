"""The pods of one run: granted over the bus, allocated over gRPC, with programs at the end."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hamicommon.grants.grant import Grant, GrantedShare
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceAllocation

from bench.node_agent.bare_server import time_call
from bench.node_agent.processor_time import running_ms
from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, container, grant
from tests.integration.node_agent.machine import FAKEGPU, RESOURCE, Kubelet, Machine, mounts_of
from tests.native.machine import LIBVGPU
from tests.unit.node_agent.region_files import v1_file

CARDS = tuple(f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(8))


def grant_of(number: int, uid: str) -> tuple[Grant, str]:
    """The grant of one pod, and the id that the kubelet takes for it."""
    card = CARDS[number % len(CARDS)]
    share = GrantedShare(uuid=card, vendor="NVIDIA", memory_mib=1024, core_percent=2)
    granted = grant(uid, container(share), token=number + 1)
    granted = granted.model_copy(update={"pod_name": f"pod-{number}"})
    return granted, f"{card}-{number // len(CARDS)}"


class Run:
    """The pods of one run."""

    def __init__(self, agent_pid: int, kubelet: Kubelet, control: Control, made: ApiPods) -> None:
        self._agent_pid = agent_pid
        self._kubelet = kubelet
        self._made = made
        self._control = control
        self.allocate_ms: list[float] = []
        self.prestart_ms: list[float] = []
        self.allocate_cpu_ms: list[float] = []
        self.prestart_cpu_ms: list[float] = []
        self.regions: list[Path] = []
        self.answer = b""
        self._answers: list[tuple[Grant, Any]] = []
        self._programs: list[subprocess.Popen[bytes]] = []

    async def bring(self, pods: int, stub: Any) -> None:
        """Pods one after the other."""
        for number in range(pods):
            await self._made.create(f"pod-{number}")
            granted, device = grant_of(number, self._made.uids[f"pod-{number}"])
            await self._control.announce(granted)
            await self._control.until_all_is_consumed()
            request = api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=[device])]
            )
            answer = await self._time_call(
                self.allocate_ms, self.allocate_cpu_ms, stub.Allocate, request
            )
            self.answer = answer.SerializeToString()
            self._remember(granted, device, answer.container_responses[0])
            start = api.PreStartContainerRequest(devices_ids=[device])
            await self._time_call(
                self.prestart_ms, self.prestart_cpu_ms, stub.PreStartContainer, start
            )

    async def _time_call(
        self, spent: list[float], computed: list[float], call: Any, request: Any
    ) -> Any:
        """Whatever else the agent does at that time is in its CPU time too."""
        began = running_ms(self._agent_pid)
        spent_ms, answer = await time_call(call, request)
        spent.append(spent_ms)
        computed.append(running_ms(self._agent_pid) - began)
        return answer

    def _remember(self, granted: Grant, device: str, answer: Any) -> None:
        uid = granted.pod_uid
        self._kubelet.pods[uid] = granted.pod_name
        self._kubelet.allocations[uid, "main"] = DeviceAllocation(
            pod_uid=uid,
            container="main",
            resource=RESOURCE,
            ids_by_numa={-1: (device,)},
            answer=AllocateAnswer(raw=answer.SerializeToString()),
        )
        self._kubelet.write_checkpoint()
        self._control.keep(granted, "allocated")
        name = Path(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
        self.regions.append(v1_file(mounts_of(answer)["/usr/local/vgpu"] / name))
        self._answers.append((granted, answer))

    def begin_programs(self, node: Machine, proc: Path) -> None:
        """A program in each container that holds memory and does nothing."""
        for (granted, answer), region in zip(self._answers, self.regions, strict=True):
            region.unlink()
            mounts = mounts_of(answer)
            environment = {
                "LD_LIBRARY_PATH": str(FAKEGPU),
                "LD_PRELOAD": f"{LIBVGPU}:{FAKEGPU / 'libpathmap.so'}",
                "HAMI_PATHMAP": ";".join(
                    f"{path}={mounts[path]}" for path in ("/etc/hami", "/usr/local/vgpu")
                ),
                "FAKEGPU_CONFIG": str(node.root / "fakegpu.json"),
                "FAKEGPU_VISIBLE_DEVICES": granted.containers[0].shares[0].uuid,
            }
            argv = [str(FAKEGPU / "vgpu-probe"), "--bytes", str(1 << 20), "--no-launch"]
            program = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
            self._programs.append(program)
            # What no kubelet has made here: the cgroup, by which a process is its pod's.
            folder = proc / str(program.pid)
            folder.mkdir()
            for name in ("stat", "status"):
                (folder / name).symlink_to(f"/proc/{program.pid}/{name}")
            (folder / "cgroup").write_text(f"0::/kubepods/pod{granted.pod_uid}/main\n")
        for program in self._programs:
            assert program.stdout is not None
            while b"running" not in (line := program.stdout.readline()):
                assert line, "the program ended"

    def end_programs(self) -> None:
        """End them."""
        for program in self._programs:
            program.kill()
            program.wait(timeout=30)
            assert program.stdout is not None
            program.stdout.close()
