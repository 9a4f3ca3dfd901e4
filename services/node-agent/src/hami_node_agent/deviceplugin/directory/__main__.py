"""Starts hami-directory-plugin: one directory's files as devices, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from hamicommon import telemetry
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.process.shutdown import until_stopped
from hamicommon.settings import TelemetrySettings

from hami_node_agent.deviceplugin.directory.plugin import DirectoryPlugin
from hami_node_agent.deviceplugin.registration import KubeletRegistration


def main() -> None:
    """Console script `hami-directory-plugin`."""
    given = _parse(sys.argv[1:])
    telemetry.setup("hami-directory-plugin", TelemetrySettings())
    problem = ""
    try:
        asyncio.run(_run(given))
    except* HamiError as group:
        problem = str(group.exceptions[0])
    finally:
        telemetry.shutdown()
    # Not above: CPython before 3.11.4 makes a group of what is raised in an `except*`.
    if problem:
        sys.exit(f"hami-directory-plugin: {problem}")


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
    parser = argparse.ArgumentParser(prog="hami-directory-plugin", description=__doc__)
    add = parser.add_argument
    add("--resource", required=True, help="what pods ask for, such as example.com/gopher")
    add("--directory", required=True, type=Path, help="each file in it is a device")
    add("--env", action="append", default=[], help="NAME=VALUE for containers; {ids}: the files")
    add(
        "--socket-dir",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where the kubelet's socket is",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
