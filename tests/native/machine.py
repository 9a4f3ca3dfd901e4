"""A simulated machine, containers on it, and programs that use the driver from inside them.

A program is `client.py` in a separate process, driven line by line. It runs under libvgpu as a
workload would.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LIBVGPU = ROOT / "native/libvgpu/build/libvgpu.so"
FAKEGPU = ROOT / "native/fakegpu/build"
MIB = 1 << 20
DRIVER_LOCK_OFFSET = 56
"""Place of `lock` in `struct fg_state` (native/fakegpu/src/state/state.h)."""
FUTEX_TID_MASK = 0x3FFFFFFF
"""Bits of a robust mutex that hold its owner (linux/futex.h)."""
CARDS = ("GPU-11111111-0000-0000-0000-000000000001", "GPU-22222222-0000-0000-0000-000000000002")


class Client:
    """A program inside a container; each call is one driver call there and returns its answer."""

    def __init__(self, env: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.native.client"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, op: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(PATIENCE_S)}"
        return json.loads(line)

    @property
    def has_answer(self) -> bool:
        """Whether an answer, or the end of the program, can be received."""
        assert self.process.stdout
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def call(self, op: str, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.receive()

    def alloc(self, size: int, **arguments: Any) -> tuple[int, int]:
        """(CUresult, pointer)"""
        answer = self.call("alloc", bytes=size, **arguments)
        return answer["result"], answer["pointer"]

    def free(self, pointer: int, **arguments: Any) -> int:
        return int(self.call("free", pointer=pointer, **arguments)["result"])

    def info(self) -> tuple[int, int]:
        """(free, total) of cuMemGetInfo"""
        answer = self.call("info")
        assert answer["result"] == 0
        return answer["free"], answer["total"]

    def nvml(self, name: str, *arguments: Any) -> Any:
        """Call a pynvml function; a number means the device of that index."""
        return self.call("nvml", name=name, arguments=arguments)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def end(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.kill()
        elif self.process.stdin and not self.process.stdin.closed:
            self.close()

    def close(self) -> int:
        """End the program normally; return its exit status."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):  # it has ended with a call unread
            self.process.stdin.close()
        status = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return status


def open_context(client: Client, ordinal: int = 0) -> Client:
    """The program with that device's primary context current."""
    assert client.call("open_device", ordinal=ordinal) == {"result": 0}
    return client


def is_locked(path: Path) -> bool:
    """Return whether another process holds a record lock on the file."""
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@dataclass
class Machine:
    """A node with simulated cards, two unless a test asks for others."""

    folder: Path
    settings: dict[str, Any]
    clients: list[Client] = field(default_factory=list)

    @classmethod
    def with_two_cards(cls, folder: Path) -> Self:
        return cls.with_cards(folder, CARDS)

    @classmethod
    def with_cards(cls, folder: Path, uuids: Sequence[str]) -> Self:
        cards = [{"uuid": uuid, "memory_mib": 8192} for uuid in uuids]
        machine = cls(folder, {"state": str(folder / "state"), "devices": cards})
        machine.write()
        return machine

    def write(self) -> None:
        (self.folder / "machine.json").write_text(json.dumps(self.settings))

    def env(self, **more: str) -> dict[str, str]:
        """A process of the node itself: the driver, no libvgpu."""
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(FAKEGPU),
            "FAKEGPU_CONFIG": str(self.folder / "machine.json"),
            **more,
        }

    def ctl(self, *arguments: str) -> Any:
        result = subprocess.run(
            [FAKEGPU / "fakegpu-ctl", *arguments],
            env=self.env(),
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return json.loads(result.stdout) if arguments == ("show",) else None

    def used_bytes(self, card: int = 0) -> int:
        """Bytes that the card really allocated, to any process."""
        return int(self.ctl("show")["cards"][card]["used_bytes"])

    def peak(self, card: int = 0) -> int:
        return int(self.ctl("show")["cards"][card]["peak_bytes"])

    def is_driver_locked_by(self, pid: int) -> bool:
        """Return whether the program holds the stand-in driver's lock, also while it is stopped.

        A real driver's locks are the kernel's: no stopped program holds one.
        """
        with Path(self.settings["state"]).open("rb") as state:
            state.seek(DRIVER_LOCK_OFFSET)
            return int.from_bytes(state.read(4), sys.byteorder) & FUTEX_TID_MASK == pid

    def start(self, env: dict[str, str], prefix: Sequence[str] = ()) -> Client:
        """Start a program; `prefix` is a command that runs it in another environment."""
        client = Client(env, prefix)
        self.clients.append(client)
        return client


@dataclass
class Container:
    """The shared part of one container's processes: a region file and a limits directory."""

    machine: Machine
    folder: Path
    place: Path | None = None
    library: Path = LIBVGPU

    @property
    def region(self) -> Path:
        return self.place or self.folder / "region.cache"

    def limits(self, text: str, *, with_region: bool = True) -> None:
        """Replace the limits file as the node agent does: by rename, with the region's path."""
        directory = self.folder / "hami"
        directory.mkdir(exist_ok=True)
        if with_region and text.startswith("hami-limits 1\n") and "\nregion " not in text:
            text += f"region {self.region}\n"
        (directory / "limits.new").write_text(text)
        (directory / "limits.new").rename(directory / "limits")

    def limit(self, memory_bytes: int, cores: int = 0, card: int = 0) -> None:
        self.limits(
            "hami-limits 1\npolicy default\noversubscribe 0\n"
            f"device {CARDS[card]} memory_bytes {memory_bytes} core_percent {cores}\n"
        )

    def env(self, **more: str) -> dict[str, str]:
        return self.machine.env(
            **{
                "LD_PRELOAD": f"{self.library}:{FAKEGPU / 'libpathmap.so'}",
                "HAMI_PATHMAP": f"/etc/hami={self.folder / 'hami'}",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
                **more,
            }
        )

    def start(self, **more: str) -> Client:
        return self.machine.start(self.env(**more))
