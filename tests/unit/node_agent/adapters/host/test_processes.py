"""Processes as the host's /proc shows them: real ones, and a pod's as files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hami_node_agent.adapters.host.processes import HostProcesses
from hami_node_agent.devices.processes import HostProcess

POD = "6a3f1b7e-0c5d-4e2a-9b8f-1234567890ab"
STAT = (
    "4711 (a (strange) name) {state} 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 {start} 1"
)


def a_process(
    proc: Path, *, state: str = "S", threads: int = 1, start: int = 500, cgroup: str = ""
) -> None:
    folder = proc / "4711"
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(STAT.format(state=state, threads=threads, start=start))
    (folder / "status").write_text("Name:\tx\nPid:\t4711\nNSpid:\t4711\t7\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def test_a_process_of_this_host_is_seen_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = HostProcesses(Path("/proc"))
    try:
        seen = processes.living([child.pid, os.getpid()])
        assert set(seen) == {child.pid, os.getpid()}
        assert seen[child.pid].started_ticks >= seen[os.getpid()].started_ticks > 0
    finally:
        child.send_signal(signal.SIGKILL)
    # Not reaped yet: a zombie is not living.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert set(processes.living([child.pid])) == set()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


@pytest.mark.parametrize(
    ("cgroup", "pod_uid"),
    [
        (f"/kubepods/burstable/pod{POD}/0123", POD),
        (f"/../kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-0123.scope", POD),
        ("/user.slice", ""),
    ],
)
def test_namespace_start_and_pod_are_read(tmp_path: Path, cgroup: str, pod_uid: str) -> None:
    a_process(tmp_path, cgroup=cgroup)

    assert HostProcesses(tmp_path).living([4711, 4712]) == {
        4711: HostProcess(host_pid=4711, inner_pid=7, started_ticks=500, pod_uid=pod_uid)
    }


@pytest.mark.parametrize("name", ["cgroup", "status"])
def test_what_could_not_be_read_of_a_process_is_read_again(tmp_path: Path, name: str) -> None:
    a_process(tmp_path, cgroup=f"/kubepods/burstable/pod{POD}/0123")
    kept = (tmp_path / "4711" / name).rename(tmp_path / name)
    processes = HostProcesses(tmp_path)
    whole = HostProcess(host_pid=4711, inner_pid=7, started_ticks=500, pod_uid=POD)

    assert processes.living([4711])[4711] != whole
    kept.rename(tmp_path / "4711" / name)

    assert processes.living([4711]) == {4711: whole}


STATIC = "0123456789abcdef0123456789abcdef"
CONTAINER = f"{0xC0FFEE:064x}"


@pytest.mark.parametrize(
    ("cgroup", "static_pod", "container_id"),
    [
        (f"/kubepods/burstable/pod{STATIC}/{CONTAINER}", STATIC, CONTAINER),
        (f"/kubepods.slice/kubepods-pod{STATIC}.slice/crio-{CONTAINER}.scope", STATIC, CONTAINER),
        (f"/k8s.io/{CONTAINER}", "", CONTAINER),
        (f"/user.slice/pod{STATIC}", "", ""),
        # What a container makes below its own cgroup comes after what the runtime made.
        (f"/k8s.io/{CONTAINER}/{0xBAD:064x}", "", CONTAINER),
    ],
)
def test_static_pods_and_containers_are_read(
    tmp_path: Path, cgroup: str, static_pod: str, container_id: str
) -> None:
    a_process(tmp_path, cgroup=cgroup)
    [seen] = HostProcesses(tmp_path).living([4711]).values()
    assert (seen.pod_uid, seen.static_pod, seen.container_id) == ("", static_pod, container_id)


def test_no_cgroup_below_its_own_makes_a_process_another_pods(tmp_path: Path) -> None:
    other = POD.replace("6", "7")
    a_process(tmp_path, cgroup=f"/kubepods/pod{POD}/{CONTAINER}/kubepods/pod{other}/{0xBAD:064x}")
    [seen] = HostProcesses(tmp_path).living([4711]).values()
    assert (seen.pod_uid, seen.container_id) == (POD, CONTAINER)


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    a_process(tmp_path, start=500)
    processes = HostProcesses(tmp_path)
    processes.living([4711])

    a_process(tmp_path, start=600, cgroup=f"/pod{POD}")

    assert processes.living([4711])[4711].started_ticks == 600
    assert processes.living([4711])[4711].pod_uid == POD


def test_a_zombie_with_threads_lives(tmp_path: Path) -> None:
    a_process(tmp_path, state="Z", threads=2)
    assert set(HostProcesses(tmp_path).living([4711])) == {4711}

    a_process(tmp_path, state="Z")
    assert HostProcesses(tmp_path).living([4711]) == {}


def test_what_cannot_be_read_does_not_live(tmp_path: Path) -> None:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "stat").write_text("4711 (cut")

    assert HostProcesses(tmp_path).living([4711]) == {}
