"""What a server needs to be run, and what is known of it once it runs.

A plan is made by `postgres.prepare`, `nats.prepare`, `valkey.prepare`; it is run by
`processes.running` or by the supervisor.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hamilocal.supervisor.identity import ProcessIdentity


class NotReadyError(Exception):
    """The server does not answer yet; the text names what it did instead."""


class ServerError(Exception):
    """A server cannot be prepared, started or stopped; the text is one sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """How to run one server.

    `prefix` is what the program must be run under: empty, or a change of user that ends in an
    exec. `probe` asks once, by the server's own protocol, within a second; it raises
    `NotReadyError` until the server serves. `before_start` clears what a killed predecessor left;
    it is called before every start. `stop_signal` asks for a clean stop that does not wait for
    clients.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    log_path: Path
    url: str
    port: int
    probe: Callable[[], None]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0
    prefix: tuple[str, ...] = ()
    before_start: Callable[[], None] | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line; the process it makes is the server itself."""
        return (*self.prefix, *self.argv)


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
