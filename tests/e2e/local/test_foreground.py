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
from pathlib import Path
from typing import Any

import httpx
import pytest
from hamilocal.supervisor.state_file import marked_processes

from tests.e2e.system import READY_TIMEOUT_S, hamictl
from tests.servers import memory_folder

pytestmark = pytest.mark.e2e


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
    """Serves one node, without cards unless a parameter names a number."""
    folder.mkdir()
    flags = ("--nodes", "1", "--gpus", str(getattr(request, "param", 0)), "--no-demo", "--json")
    with subprocess.Popen(
        # A shell ignores Ctrl-C in what it runs in the background, and tests run so pass that on.
        [
            *("env", "--default-signal=INT"),
            *(str(Path(sys.executable).parent / "hamictl"), "up", *flags),
        ],
        env={"HAMI_FOLDER": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def described(up: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the description that `up` prints when everything serves."""
    assert up.stdout is not None
    text = ""
    for line in up.stdout:
        text += line
        if line == "}\n":
            break
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_system(
    up: subprocess.Popen[str], folder: Path, number: signal.Signals
) -> None:
    described(up)

    up.send_signal(number)

    _, errors = up.communicate(timeout=READY_TIMEOUT_S)
    assert up.returncode == 0, errors
    assert marked_processes(folder) == []


def test_down_from_another_terminal_ends_it(up: subprocess.Popen[str], folder: Path) -> None:
    described(up)

    assert hamictl(folder, "down") == "stopped\n"

    assert up.wait(READY_TIMEOUT_S) == 0


def test_a_supervisor_that_dies_ends_it_with_a_sentence_and_leaves_nothing(
    up: subprocess.Popen[str], folder: Path
) -> None:
    os.kill(described(up)["pids"]["supervisor"], signal.SIGKILL)

    _, message = up.communicate(timeout=READY_TIMEOUT_S)

    assert up.returncode == 1
    assert message.startswith("hamictl: the local system ended unasked; ")
    assert marked_processes(folder) == []


@pytest.mark.parametrize("up", [2], indirect=True)
def test_it_is_up_when_the_scheduler_knows_the_cards(up: subprocess.Popen[str]) -> None:
    at = described(up)["scheduler_url"]

    cards = httpx.get(f"{at}/v1/devices", timeout=30).json()["items"]

    assert [(card["node"], card["present"]) for card in cards] == [("node-0", True)] * 2


def test_the_address_of_the_pages_is_the_first_line(folder: Path) -> None:
    folder.mkdir()
    flags = ("--detach", "--no-demo", "--nodes", "1", "--gpus", "0")

    lines = hamictl(folder, "up", *flags).splitlines()

    found = re.fullmatch(r"pages: (\S+) \(for this machine alone\)", lines[0])
    assert found is not None
    assert httpx.get(found[1], timeout=30).status_code == 200
    again = hamictl(folder, "up", *flags).splitlines()
    assert again[0] == lines[0]
