"""Device plugin whose devices are the files of a directory: an example of a vendor of one's own.

A file that appears in the directory is one more device, a deleted one is gone. A container that
was given some of them has their names in its environment. README.md shows how to start it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hami_node_agent.deviceplugin.registration import KubeletRegistration
from hami_node_agent.deviceplugin.servicer import AdvertisedDevice, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.state import Signal
from hamicommon import telemetry
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.process.shutdown import until_stopped
from hamicommon.settings import TelemetrySettings

POLL_INTERVAL_S = 0.5


class DirectoryPlugin(DevicePluginService):
    """One directory, offered as one resource."""

    def __init__(self, directory: Path, *, envs: Mapping[str, str]) -> None:
        """`envs`: variables of a container; `{ids}` in a value is its files, joined by commas."""
        self.changed = Signal()
        super().__init__(self.changed)
        self._directory = directory
        self._envs = envs
        self._names = files_of(directory)

    def devices(self) -> Iterator[AdvertisedDevice]:
        """Yield the files, by name."""
        return (AdvertisedDevice(device_id=name) for name in sorted(self._names))

    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """Return the variables of each container, with the names of its files put in."""
        return [
            ContainerSpec(
                envs={k: v.replace("{ids}", ",".join(sorted(ids))) for k, v in self._envs.items()},
                mounts=(),
            )
            for ids in requests
        ]

    async def run(self) -> None:
        """Follow the directory until cancelled."""
        while True:
            names = await asyncio.to_thread(files_of, self._directory)
            if names != self._names:
                self._names = names
                self.changed.notify()
            await asyncio.sleep(POLL_INTERVAL_S)


def files_of(directory: Path) -> frozenset[str]:
    """List the files; directories and hidden files (an editor's, a ConfigMap's) do not count.

    A directory that is missing has none.
    """
    try:
        return frozenset(
            path.name
            for path in directory.iterdir()
            if not path.name.startswith(".") and not path.is_dir()
        )
    except OSError:
        return frozenset()


def main() -> None:
    """Serve one directory until SIGTERM."""
    given = _parse(sys.argv[1:])
    telemetry.setup("directory-plugin", TelemetrySettings())
    problem = ""
    try:
        asyncio.run(_run(given))
    except* HamiError as group:
        problem = str(group.exceptions[0])
    finally:
        telemetry.shutdown()
    # Not above: CPython before 3.11.4 makes a group of what is raised in an `except*`.
    if problem:
        sys.exit(f"directory-plugin: {problem}")


async def _run(given: argparse.Namespace) -> None:
    plugin = DirectoryPlugin(given.directory, envs=_envs(given.env, given.resource))
    registration = KubeletRegistration(
        plugin,
        socket_dir=given.socket_dir,
        socket_name=f"{given.resource.replace('/', '-')}.sock",
        resource_name=given.resource,
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in (plugin.run(), registration.run())]
        await until_stopped()
        for task in tasks:
            task.cancel()


def _envs(pairs: Sequence[str], resource: str) -> dict[str, str]:
    """Raises: InvalidRequest when a pair is not NAME=VALUE."""
    envs = {}
    for pair in pairs or [f"{resource.rpartition('/')[2].upper()}={{ids}}"]:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"--env {pair}: NAME=VALUE is wanted, {{ids}} in it for the files")
        envs[name] = value
    return envs


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="directory_plugin.py", description=__doc__)
    add = parser.add_argument
    add("--resource", required=True, help="what pods ask for, such as example.com/gopher")
    add("--directory", required=True, type=Path, help="each file in it is a device")
    add("--env", action="append", default=[], help="NAME=VALUE for containers; {ids}: the files")
    add(
        "--socket-dir",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="folder of the kubelet's socket (default: %(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
