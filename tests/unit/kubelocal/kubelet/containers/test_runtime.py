"""The files between the kubelet and its launcher."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.kubelet.containers import runtime as launching
from kubelocal.kubelet.containers.environment import MountMode
from kubelocal.kubelet.containers.runtime import (
    ContainerExit,
    Launch,
    Pids,
    ProcessRuntime,
    RunningContainer,
    StartFailed,
    parse_pids,
    stop_containers,
)
from kubelocal.kubelet.devices.state import Mount
from kubelocal.kubelet.options import NATIVE_DIR

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.native

LAUNCHER = NATIVE_DIR / "launcher" / "build" / "hami-launcher"


def test_a_launch_is_a_list_of_tagged_fields() -> None:
    launch = Launch(
        argv=["echo", "a b"],
        env={"A": "1\n2"},
        cwd="/",
        log=Path("/log"),
        mounts=[Mount(container_path="/c", host_path="/h", read_only=True)],
        rootfs=Path("/root-dir"),
    )

    assert launching.encode(launch).decode().split("\0") == [
        *("cwd", "/", "log", "/log", "rootfs", "/root-dir"),
        *("mount", "ro", "/h", "/c"),
        *("env", "A=1\n2", "arg", "echo", "arg", "a b", ""),
    ]


def test_an_argument_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        launching.encode(Launch(argv=["a\0b"], env={}, cwd="/", log=Path("/log")))


def test_pid_and_exit_files_are_read() -> None:
    assert launching.parse_pids("10 1000 11 1001\n") == Pids(
        launcher=10, launcher_start=1000, container=11, container_start=1001
    )
    assert launching.parse_exit('128 1000000000 exec: "x": not found\n') == ContainerExit(
        exit_code=128,
        finished_at=datetime.fromtimestamp(1, UTC),
        message='exec: "x": not found',
    )
    assert launching.parse_exit("0 2000000000 \n").message == ""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    (tmp_path / "scratch").mkdir()
    yield ProcessRuntime(LAUNCHER, tmp_path / "pods")
    await stop_containers(tmp_path, grace_s=0.0)


def launch(
    runtime: ProcessRuntime, script: str, *mounts: Mount, root: bool = False, pod: str = "pod"
) -> Launch:
    return Launch(
        argv=["sh", "-c", script],
        env={"PATH": os.defpath},
        cwd="/",
        log=runtime.log_file(pod, "main"),
        mounts=mounts,
        rootfs=runtime.rootfs("pod", "main") if root else None,
    )


async def start(runtime: ProcessRuntime, wanted: Launch, attempt: int = 0) -> RunningContainer:
    async with asyncio.timeout(PATIENCE_S):
        return await runtime.start("pod", "main", attempt, wanted)


async def run(runtime: ProcessRuntime, wanted: Launch) -> tuple[int, str]:
    running = await start(runtime, wanted)
    async with asyncio.timeout(PATIENCE_S):
        ended = await running.wait()
    return ended.exit_code, wanted.log.read_text()


@pytest.fixture
async def namespaces(runtime: ProcessRuntime, tmp_path: Path) -> None:
    mode, reason = await runtime.detect_mount_mode(tmp_path / "scratch")
    if mode is not MountMode.NAMESPACE:
        pytest.skip(f"no mount namespaces here: {reason}")


def on_host(path: str) -> bool:
    return Path(path).exists()


async def test_output_and_exit_code_of_a_container_are_kept(runtime: ProcessRuntime) -> None:
    assert await run(runtime, launch(runtime, "echo out; echo err >&2; exit 3")) == (
        3,
        "out\nerr\n",
    )


async def test_a_missing_program_fails_the_start(runtime: ProcessRuntime) -> None:
    wanted = Launch(
        argv=["no-such-program"], env={"PATH": os.defpath}, cwd="/", log=Path("/dev/null")
    )

    with pytest.raises(StartFailed) as failure:
        await start(runtime, wanted)

    assert failure.value.ended.exit_code == 128
    assert str(failure.value) == 'exec: "no-such-program": executable file not found in $PATH'


async def test_a_signal_shows_in_the_exit_code(runtime: ProcessRuntime) -> None:
    running = await start(runtime, launch(runtime, "exec sleep 1000"))
    running.terminate()

    assert (await running.wait()).exit_code == 128 + 15


async def test_a_container_that_ignores_sigterm_is_killed(runtime: ProcessRuntime) -> None:
    wanted = launch(runtime, "trap '' TERM; echo ready; while :; do sleep 1; done")
    running = await start(runtime, wanted)
    async with asyncio.timeout(PATIENCE_S):
        # Before the shell has set its trap, SIGTERM ends it as any other.
        while "ready" not in wanted.log.read_text():
            await asyncio.sleep(0.01)
    running.terminate()
    running.kill()

    async with asyncio.timeout(PATIENCE_S):
        assert (await running.wait()).exit_code == 128 + 9


async def test_nothing_that_a_container_started_outlives_it(runtime: ProcessRuntime) -> None:
    wanted = launch(runtime, "setsid sleep 1000 & echo $!")

    _, output = await run(runtime, wanted)

    assert not on_host(f"/proc/{int(output)}")


async def test_a_new_kubelet_finds_a_running_container(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    first = await start(runtime, launch(runtime, "exec sleep 1000"))
    recovered = ProcessRuntime(LAUNCHER, tmp_path / "pods").recover("pod", "main")

    assert recovered is not None
    assert recovered.running is not None
    recovered.running.kill()
    assert (await recovered.running.wait()).exit_code == 128 + 9
    assert (await first.wait()).exit_code == 128 + 9


async def test_a_new_kubelet_learns_how_a_container_ended_and_the_one_before(
    runtime: ProcessRuntime,
) -> None:
    for attempt, code in enumerate((4, 5)):
        await (await start(runtime, launch(runtime, f"exit {code}"), attempt)).wait()

    recovered = runtime.recover("pod", "main")

    assert recovered is not None
    assert recovered.running is None
    assert recovered.attempt == 1
    assert recovered.ended is not None
    assert recovered.ended.exit_code == 5
    assert recovered.previous is not None
    assert recovered.previous.exit_code == 4


async def test_a_container_whose_launcher_vanished_has_an_unknown_end(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    running = await start(runtime, launch(runtime, "exit 0"))
    await running.wait()
    (tmp_path / "pods" / "pod" / "containers" / "main" / "0.exit").unlink()

    recovered = runtime.recover("pod", "main")

    assert recovered is not None
    assert recovered.ended is not None
    assert recovered.ended.exit_code == 137


@pytest.mark.usefixtures("namespaces")
async def test_mounts_appear_in_the_container_and_nowhere_else(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    host = tmp_path / "limits-dir"
    host.mkdir()
    (host / "limits").write_text("hami-limits 1\n")
    mount = Mount(container_path="/etc/no-such-dir/x", host_path=str(host), read_only=True)

    code, output = await run(
        runtime,
        launch(
            runtime,
            "cat /etc/no-such-dir/x/limits && ! touch /etc/no-such-dir/x/y",
            mount,
            root=True,
        ),
    )

    assert code == 0, output
    assert output.startswith("hami-limits 1\n")
    assert not on_host("/etc/no-such-dir")


@pytest.mark.usefixtures("namespaces")
async def test_a_limits_file_replaced_on_the_host_is_seen_in_the_container(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    host = tmp_path / "limits-dir"
    host.mkdir()
    mount = Mount(container_path="/etc/no-such-dir", host_path=str(host), read_only=True)
    script = "while [ ! -f /etc/no-such-dir/limits ]; do :; done; cat /etc/no-such-dir/limits"
    running = await start(runtime, launch(runtime, script, mount, root=True))
    (host / "new").write_text("replaced")
    (host / "new").rename(host / "limits")

    async with asyncio.timeout(PATIENCE_S):
        assert (await running.wait()).exit_code == 0
    assert runtime.log_file("pod", "main").read_text() == "replaced"


@pytest.mark.usefixtures("namespaces")
async def test_a_file_mounted_into_a_mounted_directory_leaves_the_directory_shared(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    cache, library = tmp_path / "cache", tmp_path / "libvgpu.so"
    cache.mkdir()
    library.write_text("library")
    mounts = [
        Mount(container_path="/usr/local/no-such-vgpu", host_path=str(cache)),
        Mount(
            container_path="/usr/local/no-such-vgpu/libvgpu.so",
            host_path=str(library),
            read_only=True,
        ),
    ]
    script = "cd /usr/local/no-such-vgpu && cat libvgpu.so && echo region > region.cache"

    code, output = await run(runtime, launch(runtime, script, *mounts, root=True))

    assert (code, output) == (0, "library")
    assert (cache / "region.cache").read_text() == "region\n"


@pytest.mark.usefixtures("namespaces")
async def test_links_of_the_host_are_followed(runtime: ProcessRuntime, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    mount = Mount(container_path="/var/run/no-such-dir/x", host_path=str(tmp_path / "x"))

    code, output = await run(runtime, launch(runtime, "cat /run/no-such-dir/x", mount, root=True))

    assert (code, output) == (0, "x")


@pytest.mark.usefixtures("namespaces")
async def test_a_missing_mount_source_fails_the_start(runtime: ProcessRuntime) -> None:
    mount = Mount(container_path="/etc/x", host_path="/no/such/source")

    with pytest.raises(StartFailed, match="mount source /no/such/source of /etc/x"):
        await start(runtime, launch(runtime, "true", mount, root=True))


async def test_a_hundred_containers_start_side_by_side(runtime: ProcessRuntime) -> None:
    async with asyncio.timeout(PATIENCE_S):
        started = await asyncio.gather(
            *(
                runtime.start(
                    f"pod-{i}", "main", 0, launch(runtime, "exec sleep 1000", pod=f"pod-{i}")
                )
                for i in range(100)
            )
        )
    for running in started:
        running.kill()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(running.wait() for running in started))


@pytest.mark.usefixtures("namespaces")
async def test_a_container_sees_its_own_processes_alone(runtime: ProcessRuntime) -> None:
    code, output = await run(
        runtime, launch(runtime, "echo $$; for one in /proc/[0-9]*; do echo $one; done", root=True)
    )

    # Process 1 is the launcher's, which passes signals on and reaps orphans.
    assert (code, output.split()) == (0, ["2", "/proc/1", "/proc/2"])


@pytest.mark.usefixtures("namespaces")
async def test_the_pid_file_names_the_program_as_the_host_sees_it(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    running = await start(runtime, launch(runtime, "exec sleep 1000", root=True))
    written = (tmp_path / "pods/pod/containers/main/0.pid").read_text()

    pid = parse_pids(written).container
    assert Path(f"/proc/{pid}/comm").read_text().strip() in (
        "sh",
        "sleep",
    )  # before its exec, after
    assert Path(f"/proc/{pid}/status").read_text().count(f"NSpid:\t{pid}\t2\n") == 1
    running.kill()
    await running.wait()


@pytest.mark.usefixtures("namespaces")
async def test_sigterm_ends_a_program_that_has_no_handler(runtime: ProcessRuntime) -> None:
    # The first process of a pid namespace would ignore it.
    running = await start(runtime, launch(runtime, "exec sleep 1000", root=True))
    running.terminate()

    async with asyncio.timeout(30):
        assert (await running.wait()).exit_code == 128 + 15


@pytest.mark.usefixtures("namespaces")
async def test_a_program_may_choose_its_end_at_sigterm(runtime: ProcessRuntime) -> None:
    script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    wanted = launch(runtime, script, root=True)
    running = await start(runtime, wanted)
    async with asyncio.timeout(30):
        while "ready" not in wanted.log.read_text():
            await asyncio.sleep(0.01)
    running.terminate()

    async with asyncio.timeout(30):
        assert (await running.wait()).exit_code == 7


@pytest.mark.usefixtures("namespaces")
async def test_a_killed_container_leaves_nothing_on_the_host(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    marker = str(tmp_path / "no-such-argument")
    script = f"setsid sh -c 'sleep 1000; : {marker}' & echo started; wait"
    wanted = launch(runtime, script, root=True)
    running = await start(runtime, wanted)
    async with asyncio.timeout(30):
        while "started" not in wanted.log.read_text() or not running_with(marker):
            await asyncio.sleep(0.01)
        running.kill()
        assert (await running.wait()).exit_code == 128 + 9

    assert not running_with(marker)


@pytest.mark.usefixtures("namespaces")
async def test_a_missing_program_in_a_root_of_its_own_fails_the_start(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    wanted = Launch(
        argv=["no-such-program"],
        env={"PATH": os.defpath},
        cwd="/",
        log=tmp_path / "log",
        rootfs=runtime.rootfs("pod", "main"),
    )

    with pytest.raises(StartFailed, match="executable file not found"):
        await start(runtime, wanted)


def running_with(argument: str) -> bool:
    """Whether a program that has this text in its command line runs on the host."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if (
                argument in entry.read_bytes().decode(errors="replace")
                and int(entry.parent.name) != os.getpid()
            ):
                return True
    return False
