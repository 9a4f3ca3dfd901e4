"""Run `python -m kubelocal.kubescheduler --kubeconfig FILE --config FILE`."""

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.k8s.client import open_kube_api
from hamicommon.settings import TelemetrySettings

from kubelocal.kubescheduler.configuration import SchedulerConfiguration, read_configuration
from kubelocal.kubescheduler.extender import open_extender
from kubelocal.kubescheduler.loop import SchedulingLoop


async def schedule(kubeconfig: Path | None, configuration: SchedulerConfiguration) -> None:
    """Run until SIGTERM or SIGINT."""
    work = asyncio.create_task(_work(kubeconfig, configuration))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return


async def _work(kubeconfig: Path | None, configuration: SchedulerConfiguration) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_kube_api(kubeconfig))
        extenders = [
            await stack.enter_async_context(open_extender(one)) for one in configuration.extenders
        ]
        loop = SchedulingLoop(api, configuration, extenders)
        await loop.run()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="kubelocal.kubescheduler", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, help="default: the one the configuration names")
    parser.add_argument("--config", type=Path, required=True, help="KubeSchedulerConfiguration")
    arguments = parser.parse_args()
    problem = ""
    try:
        configuration = read_configuration(arguments.config)
        telemetry.setup("kube-scheduler", TelemetrySettings())
        named = configuration.client_connection.kubeconfig
        kubeconfig = arguments.kubeconfig or (Path(named) if named else None)
        asyncio.run(schedule(kubeconfig, configuration))
    except* HamiError as errors:
        problem = str(_first(errors))
    # Not above: CPython before 3.11.4 wraps exceptions raised in an `except*` in a group.
    if problem:
        sys.exit(f"kube-scheduler: {problem}")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
