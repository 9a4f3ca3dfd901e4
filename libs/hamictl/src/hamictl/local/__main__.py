"""The supervisor process of a local system: `python -m hamictl.local FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.settings import TelemetrySettings

from hamictl.local.layout import Layout
from hamictl.local.options import UpOptions
from hamictl.local.system import info, prepare, specs
from hamictl.servers.plan import ServerError
from hamictl.supervisor.lifecycle import RestartPolicy
from hamictl.supervisor.state_file import SupervisorError, claim
from hamictl.supervisor.supervisor import Supervisor


async def run(layout: Layout) -> None:
    """Prepares and supervises until stopped."""
    options = UpOptions.model_validate_json(layout.options.read_bytes())
    await asyncio.to_thread(claim, layout.state)
    context = await asyncio.to_thread(prepare, layout, options)
    policy = RestartPolicy(max_exits=options.most_ends)
    await Supervisor(specs(context), folder=layout.folder, info=info(context), policy=policy).run()


def main() -> None:
    """Runs; a failure to start is one line in the supervisor's log."""
    telemetry.setup("hami-local", TelemetrySettings())
    try:
        asyncio.run(run(Layout(folder=Path(sys.argv[1]))))
    except (HamiError, ServerError, SupervisorError) as exc:
        raise SystemExit(f"hamictl up: {exc}") from None


if __name__ == "__main__":
    main()
