"""`hamictl up` in the foreground ends with its system, and its system with it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hamilocal.supervisor.state_file import marked_processes

from tests.e2e.system import READY_TIMEOUT_S, environment_of, hamictl
from tests.servers import memory_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hami-e2e-", dir=memory_folder()))
    made.chmod(0o755)
    try:
        yield made / "system"
    finally:
        hamictl(made / "system", "down")
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def up(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """`hamictl up` without nodes, printing JSON, unless a parameter has other options."""
    folder.mkdir()
    with start_up(folder, *getattr(request, "param", ("--nodes", "0", "--json"))) as process:
        yield process


@contextmanager
def start_up(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        # Background processes of a shell ignore Ctrl-C, and so do the children of such tests.
        [
            *("env", "--default-signal=INT"),
            *(str(Path(sys.executable).parent / "hamictl"), "up", "--no-demo", *flags),
        ],
        env=environment_of(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_description(up: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the description that `up` prints when everything serves."""
    assert up.stdout is not None
    text = ""
    for line in up.stdout:
        text += line
        if line == "}\n":
            break
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("up", [("--nodes", "1", "--json")], indirect=True)
def test_it_is_up_when_the_scheduler_knows_the_cards_and_ends_on_ctrl_c(
    up: subprocess.Popen[str], folder: Path
) -> None:
    at = read_description(up)["scheduler_url"]

    cards = httpx.get(f"{at}/v1/devices", timeout=30).json()["items"]

    assert [(card["node"], card["present"]) for card in cards] == [("node-0", True)] * 4
    ends_on(signal.SIGINT, up, folder)


@pytest.mark.parametrize("up", [("--nodes", "0")], indirect=True)
def test_the_address_of_the_pages_is_the_first_line_and_sigterm_is_the_end(
    up: subprocess.Popen[str], folder: Path
) -> None:
    assert up.stdout is not None
    line = up.stdout.readline().strip()

    again = hamictl(folder, "up", "--detach", "--no-demo", "--nodes", "0").splitlines()

    assert again[0] == line
    found = re.fullmatch(r"pages: (\S+) \(on this machine only\)", line)
    assert found is not None
    assert httpx.get(found[1], timeout=30).status_code == 200
    ends_on(signal.SIGTERM, up, folder)


def test_ctrl_c_of_a_second_one_leaves_the_system_running(folder: Path) -> None:
    folder.mkdir()
    hamictl(folder, "up", "--detach", "--no-demo", "--nodes", "0")
    with start_up(folder, "--nodes", "0", "--json") as second:
        at = read_description(second)["scheduler_url"]

        second.send_signal(signal.SIGINT)
        shown, errors = second.communicate(timeout=READY_TIMEOUT_S)

    # Python may write on stderr too, if the interrupt comes while asyncio starts.
    assert second.returncode == 0, errors
    assert "stays up" in shown
    assert httpx.get(f"{at}/v1/devices", timeout=30).status_code == 200
    assert hamictl(folder, "down") == "stopped\n"


def ends_on(number: signal.Signals, up: subprocess.Popen[str], folder: Path) -> None:
    up.send_signal(number)

    _, errors = up.communicate(timeout=READY_TIMEOUT_S)
    assert up.returncode == 0, errors
    assert marked_processes(folder) == []


def test_down_from_another_terminal_ends_it(up: subprocess.Popen[str], folder: Path) -> None:
    read_description(up)

    assert hamictl(folder, "down") == "stopped\n"

    assert up.wait(READY_TIMEOUT_S) == 0


def test_a_supervisor_that_dies_ends_it_with_a_sentence_and_leaves_nothing(
    up: subprocess.Popen[str], folder: Path
) -> None:
    os.kill(read_description(up)["pids"]["supervisor"], signal.SIGKILL)

    _, message = up.communicate(timeout=READY_TIMEOUT_S)

    assert up.returncode == 1
    assert message.startswith("hamictl: the local system ended unexpectedly; ")
    assert marked_processes(folder) == []
