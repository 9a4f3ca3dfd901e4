"""Stops containers: those of a pod, or every one below a kubelet's root (`hamictl down`).

A kubelet that ends leaves its containers running, as a real one does; somebody who takes the whole
node away stops them with this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from kubelocal.kubelet.containers.runtime import ProcessRuntime, RunningContainer


async def stop_containers(root: Path, *, grace_s: float = 2.0) -> int:
    """SIGTERM, then after the grace SIGKILL; returns how many containers were stopped."""
    runtime = ProcessRuntime(Path(), root / "pods")
    running = [c for uid in runtime.known_pods() for c in runtime.running_of(uid)]
    await stop_all(running, grace_s)
    return len(running)


async def stop_all(running: Sequence[RunningContainer], grace_s: float) -> None:
    """SIGTERM, then after the grace SIGKILL; returns when all have ended."""
    for container in running:
        container.terminate()
    waits = [asyncio.ensure_future(container.wait()) for container in running]
    if waits:
        _, alive = await asyncio.wait(waits, timeout=grace_s)
        for container in running:
            container.kill()
        if alive:
            await asyncio.wait(alive)
