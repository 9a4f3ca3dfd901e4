"""Start, await and describe a local system from outside its supervisor.

`start` launches the supervisor as a separate process; `progress` reads its state from `state.json`;
`description` is the object that `hamictl up --json` prints.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.k8s.client import KubeApi

from hamilocal.supervisor.children import detach, identity_of, is_alive
from hamilocal.supervisor.state_file import (
    SupervisorError,
    end_stale,
    identity_from,
    read_state,
    running_supervisor,
)
from hamilocal.system.layout import Layout
from hamilocal.system.options import UpOptions

# initdb on a slow disk is the longest step; everything else is seconds.
START_TIMEOUT_S = 180.0
_POLL_S = 0.1
_LOG_TAIL_BYTES = 2000
_ADDRESSES = (
    *("pages_url", "kubeconfig", "scheduler_url", "webhook_url", "metrics_url"),
    *("postgres_dsn", "redis_url", "nats_url", "traces"),
)


def is_running(layout: Layout) -> bool:
    """Return whether a supervisor runs for this folder."""
    return running_supervisor(layout.state) is not None


def erase(layout: Layout) -> None:
    """Delete the data of earlier runs.

    Raises: Conflict if the system runs, InvalidRequest if the folder is not one of ours.
    """
    if is_running(layout):
        raise Conflict(f"{layout.folder} is in use: stop it first with `hamictl down`")
    if layout.folder.exists():
        if not layout.options.exists() and any(layout.folder.iterdir()):
            raise InvalidRequest(f"{layout.folder} is not the folder of a local system")
        end_stale(layout.state)
        shutil.rmtree(layout.folder)


def start(layout: Layout, options: UpOptions) -> int:
    """Start the supervisor; return its pid immediately."""
    layout.folder.mkdir(parents=True, exist_ok=True)
    layout.folder.chmod(0o755)
    layout.options.write_text(options.model_dump_json(indent=2))
    # The state of a finished run would be read as progress of this run; the supervisor needs the
    # state of a killed run to end its children.
    state = read_state(layout.state)
    if state is not None and state["phase"] == "stopped":
        layout.state.unlink()
    return detach(
        (sys.executable, "-m", "hamilocal.system", str(layout.folder)),
        log_path=layout.logs / "supervisor.log",
    )


def progress(layout: Layout, supervisor_pid: int) -> Iterator[dict[str, Any]]:
    """Yield the state after each read, until everything is ready.

    Raises: SupervisorError if the supervisor ended, gave up on a child, or took too long.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    supervisor = identity_of(supervisor_pid)
    while True:
        state = read_state(layout.state)
        if state is not None:
            yield state
            if state["phase"] == "ready":
                return
            for name, service in state["services"].items():
                if service["phase"] == "given_up":
                    log = service.get("log", "")
                    raise SupervisorError(f"{name} does not run: {service['reason']} (log: {log})")
        if supervisor is None or not is_alive(supervisor):
            end = _last_line(layout.logs / "supervisor.log")
            raise SupervisorError(f"the local system ended while starting: {end}")
        if time.monotonic() > deadline:
            waiting = ", ".join(not_ready(state)) if state else "the supervisor"
            raise SupervisorError(
                f"not ready within {START_TIMEOUT_S:g} s, still waiting for: {waiting}"
                f" (logs: {layout.logs})"
            )
        time.sleep(_POLL_S)


def check_stopped(layout: Layout) -> None:
    """Check after its end that the system was stopped on request. Raises: SupervisorError."""
    state = read_state(layout.state)
    if state is not None and state["phase"] != "stopped":
        raise SupervisorError(
            f"the local system ended unexpectedly; {layout.logs / 'supervisor.log'} ends with:"
            f" {_last_line(layout.logs / 'supervisor.log')}"
        )


def not_ready(state: dict[str, Any]) -> list[str]:
    """Return the names of children that do not serve yet."""
    return [name for name, entry in state["services"].items() if entry["phase"] != "ready"]


def description(state: dict[str, Any]) -> dict[str, Any]:
    """Return addresses and pids, as `hamictl up --json` prints them."""
    pids = {
        name: process.pid
        for name, entry in state["services"].items()
        if (process := identity_from(entry)) is not None
    }
    supervisor = identity_from(state.get("supervisor"))
    if supervisor is not None:
        pids["supervisor"] = supervisor.pid
    agents = [
        {**agent, "pid": pids.get(f"node-agent-{agent['node']}")} for agent in state["node_agents"]
    ]
    return {
        **{key: state[key] for key in _ADDRESSES},
        "node_agents": agents,
        "external_nodes": state.get("external_nodes", []),
        "pids": pids,
    }


async def nodes_without_cards(api: KubeApi, options: UpOptions) -> list[str]:
    """Return local nodes whose kubelet does not offer slots yet."""
    nodes = (await api.get("/api/v1/nodes"))["items"]
    offered = {
        node["metadata"]["name"]: int(
            (node.get("status", {}).get("allocatable") or {}).get("nvidia.com/gpu", "0")
        )
        for node in nodes
    }
    return [node.name for node in options.local_nodes() if node.gpus and not offered.get(node.name)]


def end_of(name: str, service: dict[str, Any]) -> str:
    """Return why a restarted child last ended; empty if it never did."""
    if not service["restarts"]:
        return ""
    return f"{name} ended and is started again; its log ends with: {_last_line(service['log'])}"


def _last_line(log: Path | str) -> str:
    try:
        text = Path(log).read_bytes()[-_LOG_TAIL_BYTES:].decode()
    except (OSError, UnicodeDecodeError):
        return "no log"
    return text.strip().splitlines()[-1] if text.strip() else "its log is empty"
