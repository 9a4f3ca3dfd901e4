"""The files between the kubelet and its launcher."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.kubelet.containers import launch_files
from kubelocal.kubelet.containers.launch_files import Ended, Launch, Pids
from kubelocal.kubelet.devices.types import Mount


def test_a_launch_is_a_list_of_tagged_fields() -> None:
    launch = Launch(
        argv=["echo", "a b"],
        env={"A": "1\n2"},
        cwd="/",
        log=Path("/log"),
        mounts=[Mount(container_path="/c", host_path="/h", read_only=True)],
        rootfs=Path("/root-dir"),
    )

    assert launch_files.encode(launch).decode().split("\0") == [
        *("cwd", "/", "log", "/log", "rootfs", "/root-dir"),
        *("mount", "ro", "/h", "/c"),
        *("env", "A=1\n2", "arg", "echo", "arg", "a b", ""),
    ]


def test_an_argument_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        launch_files.encode(Launch(argv=["a\0b"], env={}, cwd="/", log=Path("/log")))


def test_pid_and_exit_files_are_read() -> None:
    assert launch_files.parse_pids("10 1000 11 1001\n") == Pids(
        launcher=10, launcher_start=1000, container=11, container_start=1001
    )
    assert launch_files.parse_exit('128 1000000000 exec: "x": not found\n') == Ended(
        exit_code=128,
        finished_at=datetime.fromtimestamp(1, UTC),
        message='exec: "x": not found',
    )
    assert launch_files.parse_exit("0 2000000000 \n").message == ""
