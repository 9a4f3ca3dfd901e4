"""Inject faults at a service's outside calls: tests kill, delay, fail or repeat a call there.

A service makes all its outside calls through its ports, so faults are injected around them:
`around(port, "store", faults)` has the points `store.<method>.before` and `store.<method>.after`
for every coroutine method (`blocking`: for every plain one, which then runs in a thread). Without
faults it returns the port unchanged, so production pays nothing and reads no file. `Faults.hit` is
for the one point inside a call: `postgres.commit`, before a transaction's COMMIT.

Faults are in a file, one on each line, which tests write while the services run. A kill strikes
once: its line is removed from the file first, so that the restarted process lives.

    store.reserve.after=kill             # SIGKILL to this process
    pods.bind.after=error                # the call was made, its answer is lost
    lock.acquire.before=delay:2*3        # two seconds, the first three times
    grants.announce.before=hang@1        # forever, from the second time on
    reports.handle.before=twice          # the call is made two times
    bus.publish.before=late:1*6          # answered immediately, made 1 s later: the next overtake
    bus.publish_all.before=lose*3        # answered and never made; not for calls with a result
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from hamicommon.errors import HamiError, InvalidRequest, Unavailable

logger = logging.getLogger(__name__)

Port = TypeVar("Port")
Action = Literal["kill", "error", "delay", "hang", "twice", "late", "lose"]

_LINE = re.compile(
    r"(?P<point>[a-z_]+\.[a-z_]+(\.(before|after))?)=(?P<action>kill|error|delay|hang|twice|late|lose)"
    r"(:(?P<seconds>\d+(\.\d+)?))?(\*(?P<times>\d+))?(@(?P<skip>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault to inject at one point."""

    point: str
    action: Action
    seconds: float = 0.0
    """Seconds by which `delay` and `late` delay."""
    times: int | None = None
    """Number of injections; None: no limit."""
    skip: int = 0
    """Number of calls that pass before the first injection."""


def parse(text: str) -> tuple[Fault, ...]:
    """Parse one fault per line; empty lines and `#` comments are ignored.

    Raises: InvalidRequest with the line that is malformed.
    """
    faults = []
    for line in text.splitlines():
        written = line.partition("#")[0].strip()
        if not written:
            continue
        found = _LINE.fullmatch(written)
        timed = found is not None and found["action"] in ("delay", "late")
        if found is None or timed != (found["seconds"] is not None):
            raise InvalidRequest(
                f"failpoint {written!r}: expected point=kill|error|delay:SECONDS|hang|twice|"
                "late:SECONDS|lose[*TIMES][@SKIP], for example store.reserve.after=delay:2*1"
            )
        faults.append(
            Fault(
                point=found["point"],
                action=cast(Action, found["action"]),
                seconds=float(found["seconds"] or 0),
                times=None if found["times"] is None else int(found["times"]),
                skip=int(found["skip"] or 0),
            )
        )
    return tuple(faults)


@dataclass(slots=True)
class Faults:
    """Faults from a file, which is read again whenever it changes."""

    file: Path
    _changed: tuple[int, int] | None = None
    _faults: dict[str, Fault] = field(default_factory=dict)
    _passed: dict[str, int] = field(default_factory=dict)

    async def hit(self, point: str) -> Fault | None:
        """Inject the fault that is planned for this point, if any.

        Returns the fault; `twice`, `late` and `lose` are for the caller to carry out.
        Raises: Unavailable for `error`.
        """
        fault = self._due(point)
        if fault is None:
            return None
        if fault.action == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.action == "hang":
            await asyncio.Event().wait()
        else:
            self._strike(fault)
        return fault

    def hit_blocking(self, point: str) -> Fault | None:
        """Inject a fault into a blocking call in a thread.

        Raises: Unavailable for `error`.
        """
        fault = self._due(point)
        if fault is None:
            return None
        if fault.action == "delay":
            time.sleep(fault.seconds)
        elif fault.action == "hang":
            threading.Event().wait()
        else:
            self._strike(fault)
        return fault

    def _strike(self, fault: Fault) -> None:
        if fault.action == "kill":
            if self._taken_out(fault):
                os.kill(os.getpid(), signal.SIGKILL)
        elif fault.action == "error":
            raise Unavailable(f"failpoint {fault.point}")

    def _taken_out(self, fault: Fault) -> bool:
        """Remove a used-up fault from the file; return False if another process did so first."""
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = self.file.read_text().splitlines()
            left = [line for line in lines if fault not in parse(line)]
            whole = self.file.with_suffix(".next")
            whole.write_text("\n".join(left))
            whole.replace(self.file)
        return left != lines

    def _due(self, point: str) -> Fault | None:
        self._read()
        fault = self._faults.get(point)
        if fault is None:
            return None
        passed = self._passed[point] = self._passed.get(point, 0) + 1
        if passed <= fault.skip:
            return None
        if fault.times is not None and passed > fault.skip + fault.times:
            return None
        logger.warning("Hit a failpoint", extra={"point": point, "action": fault.action})
        return fault

    def _read(self) -> None:
        try:
            stat = self.file.stat()
        except FileNotFoundError:
            self._changed, self._faults = None, {}
            return
        changed = (stat.st_mtime_ns, stat.st_ino)
        if changed != self._changed:
            faults = parse(self.file.read_text())
            self._changed, self._passed = changed, {}
            self._faults = {fault.point: fault for fault in faults}


def faults_of(file: Path | None) -> Faults | None:
    """Return the faults of a setting's file; None in production, where the setting is empty."""
    if file is None:
        return None
    logger.warning("Started with failpoints on", extra={"file": str(file)})
    return Faults(file)


def around(port: Port, name: str, faults: Faults | None, *, blocking: bool = False) -> Port:
    """Return the port with fault points before and after each of its methods."""
    if faults is None:
        return port
    return cast(Port, (_AroundBlocking if blocking else _Around)(port, name, faults))


class _Around:
    """Proxy of a port that injects faults into its coroutine methods."""

    def __init__(self, port: object, name: str, faults: Faults) -> None:
        self._port, self._name, self._faults = port, name, faults
        self._late: set[asyncio.Task[None]] = set()

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        if not inspect.iscoroutinefunction(found):
            return found
        return self._wrap(found, f"{self._name}.{method}")

    def _wrap(
        self, call: Callable[..., Awaitable[Any]], point: str
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(call)
        async def faulty(*args: Any, **kwargs: Any) -> Any:
            fault = await self._faults.hit(f"{point}.before")
            action = None if fault is None else fault.action
            if fault is not None and action == "late":
                self._make_late(lambda: call(*args, **kwargs), fault.seconds)
            if action in ("late", "lose"):
                return _no_answer(args)
            if action == "twice":
                await call(*args, **kwargs)
            answer = await call(*args, **kwargs)
            await self._faults.hit(f"{point}.after")
            return answer

        return faulty

    def _make_late(self, call: Callable[[], Awaitable[Any]], seconds: float) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            with contextlib.suppress(HamiError):
                await call()

        task = asyncio.ensure_future(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


def _no_answer(args: Sequence[Any]) -> list[None] | None:
    """Return the result of a call whose answer was lost; for a batch, one per part."""
    batch = args[0] if args else None
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return [None for _ in batch]
    return None


class _AroundBlocking:
    """Proxy of a port that injects faults into its plain methods."""

    def __init__(self, port: object, name: str, faults: Faults) -> None:
        self._port, self._name, self._faults = port, name, faults

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        if not inspect.ismethod(found):
            return found
        point = f"{self._name}.{method}"

        @wraps(found)
        def faulty(*args: Any, **kwargs: Any) -> Any:
            fault = self._faults.hit_blocking(f"{point}.before")
            if fault is not None and fault.action == "twice":
                found(*args, **kwargs)
            answer = found(*args, **kwargs)
            self._faults.hit_blocking(f"{point}.after")
            return answer

        return faulty
