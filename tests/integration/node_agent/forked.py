"""Agents as forks of one process with the imports done: a start costs a fifth of an exec's.

`python -m tests.integration.node_agent.forked` is that process. It reads requests, one JSON object
a line, and answers each with a line: the pid of a started agent, or the exit status of an ended
one (None: it still runs). Each agent is a separate process with its own environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

POLL_S = 0.01


class Forks:
    """The process that agents are forks of; it starts with the first one."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    def start(self, environment: Mapping[str, str], *, cwd: Path, log: Path) -> ForkedAgent:
        """Start an agent that writes its output to `log`."""
        wanted = {"environment": dict(environment), "cwd": str(cwd), "log": str(log)}
        return ForkedAgent(self, int(self.ask(wanted)))

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the answer to one request."""
        with self._turn:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=self._folder,
                    env=self._environment,
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; its agents have ended before."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


class ForkedAgent:
    """One agent, with the calls of `subprocess.Popen` that tests need."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send the signal, unless the agent has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the agent."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit status. Raises: TimeoutError."""
        deadline_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"agent {self.pid} runs after {timeout:g} s")
            time.sleep(POLL_S)
        return code


def exit_status(pid: int) -> int | None:
    """Return the exit status in the form of `subprocess.Popen.returncode`."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def become(request: Mapping[str, Any]) -> None:
    """Let this process be as a started agent is before its `main`."""
    os.chdir(request["cwd"])
    with Path(os.devnull).open("rb") as nothing, Path(request["log"]).open("ab") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["hami-node-agent"]


def serve() -> bool:
    """Answer requests until the end of input; return True in an agent."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "ended" in request:
            answer = exit_status(request["ended"])
        elif (answer := os.fork()) == 0:
            become(request)
            return True
        os.write(1, f"{json.dumps(answer)}\n".encode())
    return False


if __name__ == "__main__":
    from hami_node_agent.__main__ import main

    if serve():
        main()
