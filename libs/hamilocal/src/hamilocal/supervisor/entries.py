"""How a child is described in the state file, which `hamictl` commands and `end_stale` read."""

from pathlib import Path

from hamilocal.supervisor.children import Child
from hamilocal.supervisor.identity import ProcessIdentity
from hamilocal.supervisor.lifecycle import ChildState
from hamilocal.supervisor.specs import ChildSpec, Spec


def service_entry(
    spec: Spec, state: ChildState, child: Child | None, *, unhealthy: str, log_path: Path
) -> dict[str, object]:
    """One child; `child` is None while it has no process."""
    entry: dict[str, object] = {
        "phase": state.phase.value,
        "restarts": state.restarts,
        "reason": state.reason or unhealthy,
    }
    if isinstance(spec, ChildSpec):
        entry["urls"] = dict(spec.urls)
        entry["log"] = str(log_path)
        entry["stop_signal"] = int(spec.stop_signal)
    if child is not None and child.identity is not None:
        entry |= identity_entry(child.identity)
    return entry


def identity_entry(process: ProcessIdentity) -> dict[str, object]:
    """What distinguishes a process from a later one with its pid."""
    return {name: getattr(process, name) for name in ("pid", "start_ticks", "boot_id")}
