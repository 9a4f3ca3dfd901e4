"""Remove the agent's traces from host and Node when HAMi is uninstalled.

`python -m hami_node_agent.bootstrap.removal` runs in place of the agent, with the agent's settings
(`k8s/removal/node-agent.yaml`, docs/operations.md). In: the node's pods and the agent's folders.
Out: nothing of them. It waits for pods that hold slices, because a container of theirs that is
started again needs its files; `/readyz` names them, so `kubectl rollout status` waits too. It may
run any number of times.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hamicommon import device_config, telemetry
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.k8s.annotations import AGENT, BINDING, NVIDIA_PAIR_SCORES, NVIDIA_REGISTER
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.process.shutdown import end, until_stopped
from prometheus_client import CollectorRegistry

from hami_node_agent.adapters.cdi_files import OUR_FILES
from hami_node_agent.adapters.host.removal import OutOfTime, remove_tree
from hami_node_agent.adapters.kubernetes.node import NodeObject
from hami_node_agent.adapters.kubernetes.pod_fields import is_terminal, ref_of, signed_text
from hami_node_agent.config.settings import Settings
from hami_node_agent.config.sources import environment, read_configuration
from hami_node_agent.dra.server import DriverSockets
from hami_node_agent.inventory.capacity import sums_of
from hami_node_agent.metrics.http_server import make_routes, serving

logger = logging.getLogger(__name__)

WRITTEN_ON_THE_NODE = (AGENT, NVIDIA_REGISTER, NVIDIA_PAIR_SCORES, BINDING)
"""Annotations of the agent; the policy `hami-node-agent-nodes` lets its token change no others."""
LOOK_S = 2.0
TREE_S = 60.0
"""Maximum time for one folder per round, as tenants may have filled it."""
NAMED = 5
"""Maximum number of pods that a reason names."""


def main() -> None:
    """Run until everything is removed, or SIGTERM."""
    try:
        settings = read_configuration(sys.argv[1:], environment()).settings
    except InvalidRequest as exc:
        sys.exit(f"hami-node-removal: {exc}")
    telemetry.setup("hami-node-removal", settings.telemetry)
    try:
        asyncio.run(_run(settings))
    except HamiError as exc:
        sys.exit(f"hami-node-removal: {exc}")
    finally:
        telemetry.shutdown()


async def _run(settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
        removal = NodeRemoval(api, settings)
        routes = make_routes(CollectorRegistry(), lambda: removal.waits_for)
        await stack.enter_async_context(serving(routes, settings.metrics_bind))
        working = asyncio.create_task(removal.run(), name="removal")
        stopped = asyncio.create_task(until_stopped(), name="stop")
        stack.push_async_callback(end, [working, stopped])
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        # Removed, and ready until it is stopped: a pod that ended would be started again.
        await stopped


class NodeRemoval:
    """Remains of the agent on its node."""

    def __init__(self, api: KubeApi, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._node = NodeObject(api, settings.node_name)
        self._name = settings.node_name
        self._folders = _Folders(settings)
        self.waits_for = "it has not checked yet"
        """Empty: nothing is left."""

    async def run(self) -> None:
        """Return when nothing is left; failures of API server and disk are retried."""
        while True:
            try:
                reason = await self._look()
            except HamiError as exc:
                reason = str(exc)
            if reason != self.waits_for:
                logger.info(
                    "Removing the installation from this node",
                    extra={"waits_for": reason or "nothing: everything is removed"},
                )
            self.waits_for = reason
            if not reason:
                return
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> str:
        """Remove all, or return what must end first. Raises: Unavailable, Forbidden, NotFound."""
        pods = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._name}")
        known = await asyncio.to_thread(self._folders.pods)
        holders = holding(pods["items"], known)
        if holders:
            more = f" and {len(holders) - NAMED} more" if len(holders) > NAMED else ""
            return f"pods that hold slices: {', '.join(holders[:NAMED])}{more}"
        await asyncio.to_thread(self._folders.remove)
        if self._settings.report_capacity != "off":
            config = await asyncio.to_thread(device_config.load, self._settings.device_config_file)
            sums = sums_of((), config.nvidia or device_config.NvidiaConfig())
            await self._node.set_amounts(dict.fromkeys(sums))
        held = await self._node.annotations()
        await self._node.forget([key for key in WRITTEN_ON_THE_NODE if key in held])
        return ""


def holding(pods: Sequence[Json], with_files: frozenset[str]) -> list[str]:
    """Return pods that have not ended and have a slice, or (by uid) files of ours."""
    return sorted(
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if not is_terminal(pod) and (signed_text(pod) or ref_of(pod).uid in with_files)
    )


class _Folders:
    """Files of the agent on its host; all calls block."""

    def __init__(self, settings: Settings) -> None:
        self._vgpu = settings.hook_path / "vgpu"
        self._state = settings.state_dir
        self._cdi = settings.cdi_dir
        sockets = DriverSockets(settings.kubelet_dir)
        self._sockets = (
            sockets.registration,
            settings.device_plugins_dir / f"nvidia-{settings.resource_name.partition('/')[2]}.sock",
        )
        self._driver = sockets.claims.parent

    def pods(self) -> frozenset[str]:
        """Return uids of pods whose containers have a folder. Raises: Unavailable."""
        try:
            names = [path.name for path in (self._vgpu / "containers").iterdir()]
        except FileNotFoundError:
            return frozenset()
        except OSError as exc:
            raise Unavailable(f"{self._vgpu} can't be read: {exc}") from exc
        return frozenset(name.partition("_")[0] for name in names)

    def remove(self) -> None:
        """Remove all of HAMi's files. Raises: Unavailable with those that could not be removed."""
        for tree in (self._vgpu, self._state, self._driver):
            _remove(tree)
        for path in (*self._sockets, *sorted(self._cdi.glob(OUR_FILES))):
            _remove(path)
        # /var/lib/hami, unless something of others is in it.
        if self._state.parent.name == "hami" and _is_empty(self._state.parent):
            _remove(self._state.parent)


def _remove(path: Path) -> None:
    """Remove whatever has this path, without following links or entering mounts."""
    try:
        remove_tree(path, deadline_s=time.monotonic() + TREE_S)
    except FileNotFoundError:
        return
    except OutOfTime as exc:
        raise Unavailable(f"{path} is still being removed") from exc
    except OSError as exc:
        raise Unavailable(f"{path} can't be removed: {exc}") from exc


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise Unavailable(f"{path} can't be read: {exc}") from exc


if __name__ == "__main__":
    main()
