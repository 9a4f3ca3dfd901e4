"""Cost of the node-agent: Allocate over real gRPC, and the CPU and memory of doing nothing.

One agent process with 8 simulated cards runs beside NATS and an emulated API server, with the
settings of production and the variables of its image. 200 containers come one after the other, as
the kubelet's do: grant over the bus, then Allocate and PreStartContainer on one channel. The ratio
is to a bare gRPC server in another process that answers the same message to the same client in the
same run. Then the agent idles with its 200 containers: in `idle` their regions stay as they are, in
`busy` every region changes every second, and in `held` each container has a program with memory on
its card, so the agent checks the limits of all of them. The stand-in driver's share is measured
separately: it looks into /proc for each process and call, and a real driver does not. The CPU time
of a call is that of all the agent's threads while it was under way: on a busy machine it shows what
the wall clock can't. Goals: Allocate p99 10 ms, 1 % of a core, 90 MB. They exclude the stand-in
driver's state file, which the agent maps and a real driver does not have. Writes
bench/results/node_agent.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.figures import (
    fdatasync_ms,
    percentile,
    print_machine,
    resident_mb,
    write_results,
)
from bench.node_agent.bare_server import echoed_ms, serve_echo, stub_of
from bench.node_agent.pods import CARDS, Run
from bench.node_agent.processor_time import (
    core_percent,
    driver_core_percent,
    driver_cpu_s,
    mapped_mb,
)
from bench.servers import heap_settings
from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import open_control
from tests.integration.node_agent.machine import NODE, AgentProcess, Kubelet, Machine
from tests.servers import embedded_servers

SPLIT = 40
PREFIX = "HAMI_NODE_AGENT_"
PRODUCTION = {
    f"{PREFIX}HEARTBEAT_S": "10",
    f"{PREFIX}XID_QUIET_S": "300",
    f"{PREFIX}SAMPLE_INTERVAL_S": "5",
    f"{PREFIX}DEVICE_SPLIT_COUNT": str(SPLIT),
    **heap_settings("node-agent"),
}
GOALS = {
    "allocate_p99_ms": 10.0,
    "idle_core_percent": 1.0,
    "held_core_percent": 1.2,
    "resident_mb": 90.0,
}
SETTLE_S = 10.0
ENFORCED = re.compile(r'^hami_vgpu_limit_state\{.*state="enforced"', re.MULTILINE)


async def measure(folder: Path, nats_url: str, pods: int, seconds: float) -> dict[str, Any]:
    """One run."""
    async with AsyncExitStack() as stack:
        api_server = ApiServer(folder)
        await api_server.start()
        stack.callback(api_server.stop)
        client = await stack.enter_async_context(api_server.client())
        await client.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        node = Machine(
            root=folder,
            kubeconfig=api_server.kubeconfig,
            nats_url=nats_url,
            cards=CARDS,
            extra=PRODUCTION
            | {f"{PREFIX}PROC_ROOT": str(folder / "proc"), "PYTHONPATH": str(folder / "image")},
        )
        (folder / "proc").mkdir()
        # Tests need it and the agent's image has not: OpenTelemetry loads it where it is there.
        (folder / "image").mkdir()
        (folder / "image" / "psutil.py").write_text("raise ImportError('not in the image')\n")
        node.prepare()
        control = await stack.enter_async_context(open_control(nats_url))
        control.agent_state = node.state
        kubelet = Kubelet(node)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        agent = stack.enter_context(AgentProcess(node))
        await agent.ready()
        run = Run(agent.pid, kubelet, control, ApiPods(client))
        async with stub_of(node.sockets / "nvidia-gpu.sock") as stub:
            await run.bring(pods, stub)
        bare = await echoed_ms(folder, run.answer, f"{CARDS[0]}-0", pods)
        await asyncio.sleep(SETTLE_S)
        idle = await core_percent(agent.pid, seconds, [])
        busy = await core_percent(agent.pid, seconds, run.regions)
        stack.callback(run.end_programs)
        run.begin_programs(node, folder / "proc")
        await asyncio.sleep(SETTLE_S)
        held = await core_percent(agent.pid, seconds, [])
        by_driver = await driver_core_percent(node, float(PRODUCTION[f"{PREFIX}SAMPLE_INTERVAL_S"]))
        _, text = agent.get("/metrics")
        enforced = len(ENFORCED.findall(text))
        assert enforced == pods, f"{enforced} of {pods} containers are enforced"
        return {
            "allocate_p50_ms": statistics.median(run.allocate_ms),
            "allocate_p99_ms": percentile(run.allocate_ms, 0.99),
            "allocate_cpu_p50_ms": statistics.median(run.allocate_cpu_ms),
            "prestart_cpu_p50_ms": statistics.median(run.prestart_cpu_ms),
            "bare_p50_ms": statistics.median(bare),
            "bare_p99_ms": percentile(bare, 0.99),
            "allocate_ratio_p50": statistics.median(run.allocate_ms) / statistics.median(bare),
            "prestart_p50_ms": statistics.median(run.prestart_ms),
            "prestart_p99_ms": percentile(run.prestart_ms, 0.99),
            "fdatasync_ms": fdatasync_ms(folder),
            "idle_core_percent": idle,
            "busy_core_percent": busy,
            "held_with_stand_in_core_percent": held,
            "held_core_percent": held - by_driver,
            "resident_mb": resident_mb(agent.pid) - mapped_mb(agent.pid, "fakegpu.state"),
            "load_1min": os.getloadavg()[0],
        }


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of idling, and of being busy")
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--driver", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        print(driver_cpu_s(10, pause_s=2.0))
        return
    if arguments.echo:
        asyncio.run(serve_echo(arguments.echo))
        return
    where = print_machine()
    # A Unix socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hami-bench-"))
    try:
        with embedded_servers() as servers, servers.nats() as url:
            found = asyncio.run(measure(folder, url, arguments.pods, arguments.seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {name: round(value, 2) for name, value in found.items()}
    for name, value in result.items():
        goal = f"  (goal {GOALS[name]:g})" if name in GOALS else ""
        print(f"{name:>20}  {value:10.2f}{goal}")
    result_of_run = {"machine": where, "cards": len(CARDS), "pods": arguments.pods, **result}
    write_results("node_agent", result_of_run)


if __name__ == "__main__":
    main()
