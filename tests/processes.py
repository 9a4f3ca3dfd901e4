"""Run a server plan: start, wait until it answers, stop cleanly.

Tests and benchmarks use this; the local system gives its plans to `hamilocal.supervisor`.
"""

import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hamilocal.supervisor.children import ProcessIdentity, identity_of
from hamilocal.supervisor.plan import NotReadyError, ServerError, ServerPlan

_PROBE_TIMEOUT_S = 1.0
_POLL_S = 0.02  # servers are ready within 0.1-1 s; a probe costs a millisecond
_LOG_TAIL_LINES = 5
_LOG_TAIL_BYTES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that has answered its probe."""

    name: str
    url: str
    port: int
    process: ProcessIdentity
    log_path: Path

    @property
    def pid(self) -> int:
        """The process id of the server itself (no shell or wrapper in between)."""
        return self.process.pid


class ServerProcess:
    """A started server and the only right to stop it."""

    def __init__(self, plan: ServerPlan, popen: subprocess.Popen[bytes], value: RunningServer):
        self.plan = plan
        self.value = value
        self._popen = popen

    def is_running(self) -> bool:
        """Return whether the process still runs."""
        return self._popen.poll() is None

    def stop(self) -> None:
        """Ask for a clean stop, wait for it, kill what stays; harmless if it has ended."""
        if self._popen.poll() is not None:
            return
        self._popen.send_signal(self.plan.stop_signal)
        try:
            self._popen.wait(self.plan.stop_grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._popen.kill()
        self._popen.wait()


@contextmanager
def running(plan: ServerPlan, *, die_with_parent: bool = False) -> Iterator[ServerProcess]:
    """The server runs inside the `with` block. See `start`."""
    server = start(plan, die_with_parent=die_with_parent)
    try:
        yield server
    finally:
        server.stop()


def start(plan: ServerPlan, *, die_with_parent: bool = False) -> ServerProcess:
    """Start the server and wait until its probe succeeds.

    With `die_with_parent` the kernel kills it when the thread that called this ends, however that
    happens.

    Raises:
        ServerError: it ended before it was ready, or was not ready in time; the message quotes its
            log.
    """
    plan.log_path.parent.mkdir(parents=True, exist_ok=True)
    if plan.before_start is not None:
        plan.before_start()
    guard = ("setpriv", "--pdeathsig", "SIGKILL", "--") if die_with_parent else ()
    with plan.log_path.open("ab") as log:
        try:
            popen = subprocess.Popen(
                # A change of user clears the death signal, so the guard stands right before the
                # program.
                (*plan.prefix, *guard, *plan.argv),
                cwd=plan.cwd,
                env=os.environ | dict(plan.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
            )
        except OSError as exc:
            raise ServerError(f"cannot start {plan.name}: {exc}") from exc
    try:
        value = _wait_until_ready(plan, popen)
    except BaseException:  # also Ctrl-C: the process has no owner yet
        popen.kill()
        popen.wait()
        raise
    return ServerProcess(plan, popen, value)


def log_tail(plan: ServerPlan) -> str:
    """The last lines of the server's log, on one line, for an error message."""
    try:
        with plan.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return "no log"
    return " | ".join(line.strip() for line in text.splitlines()[-_LOG_TAIL_LINES:]) or "empty log"


def _wait_until_ready(plan: ServerPlan, popen: subprocess.Popen[bytes]) -> RunningServer:
    deadline = time.monotonic() + plan.start_timeout_s
    while True:
        try:
            plan.probe()
        except NotReadyError as exc:
            why = exc
        else:
            process = identity_of(popen.pid)
            if process is not None:
                return RunningServer(
                    name=plan.name,
                    url=plan.url,
                    port=plan.port,
                    process=process,
                    log_path=plan.log_path,
                )
            why = NotReadyError("it ended right after it was ready")
        if popen.poll() is not None:
            raise ServerError(f"{plan.name} ended {_ending(popen)}; its log: {log_tail(plan)}")
        if time.monotonic() > deadline:
            raise ServerError(
                f"{plan.name} was not ready within {plan.start_timeout_s:g} s ({why});"
                f" its log, {plan.log_path}: {log_tail(plan)}"
            )
        time.sleep(_POLL_S)


def _ending(popen: subprocess.Popen[bytes]) -> str:
    code = popen.returncode
    return f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def http_ready(url: str, *, ca_file: Path | None = None, verify: bool = True) -> None:
    """GET `url` answers 200."""
    context = None
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=ca_file)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S, context=context) as answer:
            answer.read()
    except urllib.error.HTTPError as exc:
        exc.close()
        raise NotReadyError(f"{url}: {exc}") from exc
    except OSError as exc:
        raise NotReadyError(f"{url}: {exc}") from exc
