"""Failpoints: none without a file, and with one exactly those that it lists."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.fault_injection import Fault, Faults, around, faults_of, parse

from tests.waiting import PATIENCE_S


class Port:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.name = "port"

    async def call(self, by: int = 1) -> int:
        self.calls += by
        return self.calls

    async def batch(self, parts: Sequence[str]) -> list[None]:
        self.calls += len(parts)
        return [None for _ in parts]

    def plain(self) -> str:
        return "plain"


def test_without_a_file_the_port_is_the_port_itself() -> None:
    port = Port()

    assert around(port, "port", faults_of(None)) is port


async def test_a_missing_file_and_other_points_change_nothing(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    port = around(Port(), "port", faults)
    assert await port.call() == 1

    faults.file.write_text("port.other.before=error\n")

    assert await port.call(by=2) == 3
    assert (port.plain(), port.name) == ("plain", "port")


async def test_an_error_before_prevents_the_call_and_one_after_loses_its_answer(
    tmp_path: Path,
) -> None:
    faults, real = Faults(tmp_path / "faults"), Port()
    port = around(real, "port", faults)
    faults.file.write_text("port.call.before=error*1\nport.call.after=error  # too\n")

    with pytest.raises(Unavailable):
        await port.call()
    assert real.calls == 0
    with pytest.raises(Unavailable):
        await port.call()
    assert real.calls == 1


async def test_faults_come_as_often_as_planned_and_not_before(tmp_path: Path) -> None:
    faults, real = Faults(tmp_path / "faults"), Port()
    port = around(real, "port", faults)
    faults.file.write_text("port.call.before=twice*2@1")

    assert [await port.call() for _ in range(4)] == [1, 3, 5, 6]


async def test_a_late_call_is_overtaken_by_the_next(tmp_path: Path) -> None:
    faults, real = Faults(tmp_path / "faults"), Port()
    port = around(real, "port", faults)
    faults.file.write_text("port.call.before=late:0.01*1")

    assert await port.call(by=10) is None
    assert await port.call(by=1) == 1
    async with asyncio.timeout(PATIENCE_S):
        while real.calls != 11:
            await asyncio.sleep(0.005)


async def test_a_lost_call_is_answered_and_never_made(tmp_path: Path) -> None:
    faults, real = Faults(tmp_path / "faults"), Port()
    port = around(real, "port", faults)
    faults.file.write_text("port.call.before=lose*1\nport.batch.before=lose")

    assert await port.call() is None
    assert await port.batch(["a", "b"]) == [None, None]
    assert real.calls == 0
    assert await port.call() == 1


async def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    faults, real = Faults(tmp_path / "faults"), Port()
    port = around(real, "port", faults)
    faults.file.write_text("port.call.before=error")
    with pytest.raises(Unavailable):
        await port.call()

    faults.file.unlink()

    assert await port.call() == 1


def test_a_blocking_port_has_its_points_at_plain_methods(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    port = around(Port(), "port", faults, blocking=True)
    assert (port.plain(), port.name) == ("plain", "port")

    faults.file.write_text("port.plain.after=error")

    with pytest.raises(Unavailable):
        port.plain()


async def test_hanging_lasts_until_somebody_gives_up(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    faults.file.write_text("port.call.before=hang")
    task = asyncio.create_task(around(Port(), "port", faults).call())
    await asyncio.sleep(0)

    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_kill_is_one_and_strikes_once(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("port.call.after=error\nport.call.before=kill")
    script = (
        "import asyncio, pathlib, sys; from hamicommon.fault_injection import Faults\n"
        "asyncio.run(Faults(pathlib.Path(sys.argv[1])).hit('port.call.before'))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script, str(file)], timeout=PATIENCE_S, check=False
    )

    assert ended.returncode == -signal.SIGKILL
    assert file.read_text() == "port.call.after=error"


def test_of_processes_at_the_point_in_one_moment_one_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("port.call.before=kill")
    script = (
        "import pathlib, sys; from hamicommon.fault_injection import Faults\n"
        "faults = Faults(pathlib.Path(sys.argv[1])); due = faults._due('port.call.before')\n"
        "print(flush=True); input(); faults._strike(due)"
    )
    argv = [sys.executable, "-c", script, str(file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(argv, **pipes) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()

    for process in processes:
        process.communicate(b"\n", timeout=PATIENCE_S)

    codes = sorted(process.returncode for process in processes)
    assert codes == [-signal.SIGKILL, 0, 0, 0]


@pytest.mark.parametrize(
    "line",
    ["store.reserve.after", "store.reserve.after=explode", "a.b=delay", "a.b=kill:3", "a.b=late"],
)
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(InvalidRequest, match="failpoint"):
        parse(line)


def test_a_fault_is_read_with_all_its_parts() -> None:
    assert parse("# none\nstore.reserve.after=delay:0.5*3@2\n") == (
        Fault(point="store.reserve.after", action="delay", seconds=0.5, times=3, skip=2),
    )
