"""A pod's cgroup in every layout that kubelets make, with and without processes in it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hami_node_agent.adapters.host.processes import PodCgroups

UID = "0d6f1c2e-8a53-4c1b-9b5e-7d2f3a4b5c6d"
OTHER = "11111111-8a53-4c1b-9b5e-7d2f3a4b5c6d"


def _slice(uid: str) -> str:
    return uid.replace("-", "_")


LAYOUTS = {
    "v2-systemd-guaranteed": "kubepods.slice/kubepods-pod{slice}.slice/cri-a.scope",
    "v2-systemd-burstable": (
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-a.scope"
    ),
    "v2-systemd-kind": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        "kubelet-kubepods-besteffort-pod{slice}.slice/cri-a.scope"
    ),
    "v2-cgroupfs-guaranteed": "kubepods/pod{uid}/a",
    "v1-cgroupfs-besteffort": "memory/kubepods/besteffort/pod{uid}/a",
    "v1-systemd-burstable": (
        "systemd/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/a"
    ),
}


def make(root: Path, layout: str, uid: str, *, processes: bool) -> None:
    container = root / LAYOUTS[layout].format(uid=uid, slice=_slice(uid))
    container.mkdir(parents=True)
    (container / "cgroup.procs").write_text("4711\n" if processes else "")
    (container.parent / "cgroup.procs").write_text("")
    if layout.startswith("v2"):
        (container.parent / "cgroup.events").write_text(f"populated {int(processes)}\nfrozen 0\n")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("processes", [True, False], ids=["lives", "ended"])
def test_a_pod_lives_while_its_cgroup_holds_a_process(
    tmp_path: Path, layout: str, processes: bool
) -> None:
    make(tmp_path, layout, UID, processes=processes)
    make(tmp_path, layout, OTHER, processes=not processes)

    assert PodCgroups(tmp_path).has_processes(UID) is processes


@pytest.mark.parametrize("root", [".", "missing"])
def test_without_cgroups_per_pod_nothing_is_found(tmp_path: Path, root: str) -> None:
    (tmp_path / "system.slice").mkdir()

    assert not PodCgroups(tmp_path / root).has_processes(UID)


@pytest.fixture
def bottomless(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content pytest could not remove later: shutil.rmtree recurses."""
    folder = tmp_path / "cgroups"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-r", folder], check=True, timeout=60)


@pytest.mark.parametrize("processes", [True, False], ids=["lives", "ended"])
def test_a_cgroup_nested_deeper_than_python_recurses_is_looked_through(
    bottomless: Path, processes: bool
) -> None:
    make(bottomless, "v1-cgroupfs-besteffort", UID, processes=False)
    deepest = bottomless / LAYOUTS["v1-cgroupfs-besteffort"].format(uid=UID)
    deep = str(deepest)
    for _ in range(1500):
        deep += "/d"
        os.mkdir(deep)  # noqa: PTH102 - pathlib parses the deep path each time
    with open(f"{deep}/cgroup.procs", "w") as file:  # noqa: PTH123 - as above
        file.write("4711\n" if processes else "")

    assert PodCgroups(bottomless).has_processes(UID) is processes
