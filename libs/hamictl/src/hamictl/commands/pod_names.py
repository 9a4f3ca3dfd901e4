"""Complete names of pods in a shell, from the cluster or from live grants in the ledger.

Names are cached for 5 s in a file of the user, because a shell asks at every key. On any error the
completion is empty, because a shell shows no errors.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

import typer
from hamicommon.errors import HamiError
from hamicommon.k8s.client import open_kube_api

from hamictl.settings import Settings
from hamictl.target import Installation, find_target

KEPT_S = 5.0
PATIENCE_S = 1.5
PODS = ("pod", "pods", "po")
MAX_PODS = 5000
"""Maximum number of pods that are listed: a shell does not show more."""


def pod_names(incomplete: str) -> list[str]:
    """Return the pods whose name begins with the text.

    Pods of the namespace default are returned as NAME, others as NAMESPACE/NAME, after `pod/` if
    the user typed that.
    """
    prefix = next((kind for kind in ("pod/", "pods/") if incomplete.startswith(kind)), "")
    begun = incomplete.removeprefix(prefix)
    try:
        known = _known_names()
    except (HamiError, OSError, TimeoutError, ValueError):
        return []
    return [f"{prefix}{name}" for name in known if name.startswith(begun)]


def _known_names() -> list[str]:
    settings = Settings()
    target = find_target(settings)
    kept = _kept_at(settings, target)
    try:
        if 0 <= time.time() - kept.stat().st_mtime < KEPT_S:
            return [str(name) for name in json.loads(kept.read_text())]
    except (OSError, ValueError):
        pass
    names = asyncio.run(_list_pods(target))
    _keep(kept, names)
    return names


async def _list_pods(target: Installation) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        if target.kubeconfig is None:
            client = target.scheduler_client()
            rows = await client.rows("/v1/allocations", live="true")
            found = {(str(row["namespace"]), str(row["pod_name"])) for row in rows}
        else:
            async with open_kube_api(target.kubeconfig) as api:
                pods = (await api.get(f"/api/v1/pods?limit={MAX_PODS}"))["items"]
            found = {(str(p["metadata"]["namespace"]), str(p["metadata"]["name"])) for p in pods}
    return sorted(name if space == "default" else f"{space}/{name}" for space, name in found)


def _kept_at(settings: Settings, target: Installation) -> Path:
    """Return the file that caches names for this installation."""
    given = settings.cache_home
    # Relative paths are ignored, an empty one is unset (XDG Base Directory Specification).
    home = given if given and given.is_absolute() else Path.home() / ".cache"
    which = f"{target.kubeconfig} {target.scheduler.url}"
    return home / "hamictl" / f"pods-{hashlib.sha256(which.encode()).hexdigest()[:16]}.json"


def _keep(path: Path, names: list[str]) -> None:
    """Write the cache file atomically, readable by its user only; ignore an unwritable home."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, made = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump(names, file)
        Path(made).replace(path)
    except OSError:
        return


def names_after_kind(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of NAME in `KIND NAME`, if the kind is a pod."""
    return pod_names(incomplete) if str(ctx.params.get("kind")) in PODS else []


def kinds_and_pods(incomplete: str) -> list[str]:
    """Return completions of `KIND`, which may also be `pod/NAME`."""
    if incomplete.startswith(("pod/", "pods/")):
        return pod_names(incomplete)
    return [kind for kind in ("pod", "node", "card") if kind.startswith(incomplete)]


def pod_name(given: str, namespace: str) -> tuple[str, str]:
    """Return (namespace, name) of `train`, `pod/train`, `team-a/train` or `pod/team-a/train`."""
    own, _, name = given.removeprefix("pod/").removeprefix("pods/").rpartition("/")
    return own or namespace, name
