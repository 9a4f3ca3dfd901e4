"""Namespaces of the network and of mounts for the thread that asks, and for all that it starts.

So the pods of `k8s/` have the ports that they name, a cluster's Services have their addresses, and
names inside a cluster resolve, whatever else runs on the machine.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
SERVICE_RANGE = "10.0.0.0/24"
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def private_machine(folder: Path) -> Iterator[Path]:
    """Yield the hosts file that everything inside reads; it may be written while they run."""
    before = [os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY) for name in ("net", "mnt")]
    _check(_LIBC.unshare(CLONE_NEWNET | CLONE_NEWNS))
    try:
        _run("mount", "--make-rprivate", "/")
        _run("ip", "link", "set", "lo", "up")
        # Every address of Services is this machine's.
        _run("ip", "route", "add", "local", SERVICE_RANGE, "dev", "lo")
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n")
        _run("mount", "--bind", str(hosts), "/etc/hosts")
        # The node-agent's host folders are there; the machine keeps its own as they are.
        for number, place in enumerate(("/usr/local", "/var/lib")):
            upper, work = folder / f"upper-{number}", folder / f"work-{number}"
            upper.mkdir()
            work.mkdir()
            layers = f"lowerdir={place},upperdir={upper},workdir={work}"
            _run("mount", "-t", "overlay", "overlay", "-o", layers, place)
        yield hosts
    finally:
        for descriptor, kind in zip(before, (CLONE_NEWNET, CLONE_NEWNS), strict=True):
            _check(_LIBC.setns(descriptor, kind))
            os.close(descriptor)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=30)


def _check(answer: int) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
