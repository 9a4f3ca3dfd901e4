"""`python -m kubelocal.kubelet`: options, logs, run until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from hamicommon.errors import HamiError
from hamicommon.telemetry.logs import JsonFormatter

from kubelocal.kubelet import bootstrap
from kubelocal.kubelet.options import KubeletOptions, parse


async def _run(options: KubeletOptions) -> None:
    task = asyncio.ensure_future(bootstrap.run(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped", extra={"node": options.node})


def main() -> int:
    """Runs one kubelet; 1 for an error that a user can repair."""
    options = parse()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter("hamictl-kubelet"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        asyncio.run(_run(options))
    except HamiError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
