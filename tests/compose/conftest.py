"""docker-compose.yml as a separate project, beside one that may run already."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker_servers import docker_missing

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "hami-test-compose"
# Builds and starts on a busy machine; each wait ends with its event.
PATIENCE_S = 1800.0
POLL_S = 0.5
PORTS = ("POSTGRES", "APISERVER", "SCHEDULER", "NODE_AGENT", "METRICS", "PAGES", "WEBHOOK_PROBE")


class Compose:
    """`docker compose` on this project: any free ports, volumes that end with the session."""

    def __init__(self) -> None:
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_PROGRESS": "quiet",
            **{f"HAMI_{name}_PORT": "0" for name in PORTS},
        }

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """One line as a person types it, at the top of the project."""
        return subprocess.run(
            line,
            shell=True,
            executable="/bin/bash",
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def run(self, line: str) -> str:
        """Standard output of `docker compose LINE`, which has to succeed."""
        done = self.shell(f"docker compose {line}")
        assert done.returncode == 0, f"docker compose {line}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def hamictl(self, line: str) -> Any:
        """The answer of `hamictl LINE -o json` in the container `tools`."""
        return json.loads(self.run(f"exec -T tools hamictl {line} -o json"))

    def containers(self) -> dict[str, dict[str, Any]]:
        """Service -> its container, as `docker compose ps` has it."""
        lines = self.run("ps --all --format json").splitlines()
        return {row["Service"]: row for row in map(json.loads, lines)}

    def phases(self) -> dict[str, str]:
        """Pod -> its phase."""
        return {pod["name"]: pod["phase"] for pod in self.hamictl("get pods")["items"]}


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Poll with a deadline; a failure on the way is in the last attempt's exception."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(POLL_S)


@pytest.fixture(scope="session")
def compose() -> Iterator[Compose]:
    if reason := docker_missing():
        pytest.skip(reason)
    project = Compose()
    if (done := project.shell("docker compose version")).returncode:
        pytest.skip(f"docker compose is missing: {done.stderr.strip()}")
    try:
        yield project
    finally:
        project.shell("docker compose down --volumes --remove-orphans --timeout 20")
