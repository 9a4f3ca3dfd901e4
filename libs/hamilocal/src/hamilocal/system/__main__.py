"""Run the supervisor process of a local system: `python -m hamilocal.system FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.settings import TelemetrySettings

from hamilocal.supervisor.plan import ServerError
from hamilocal.supervisor.state_file import SupervisorError, claim
from hamilocal.supervisor.supervisor import RestartPolicy, Supervisor
from hamilocal.system.layout import Layout
from hamilocal.system.options import UpOptions
from hamilocal.system.system import info, prepare, specs


async def run(layout: Layout) -> None:
    """Prepare the system and supervise it until stopped."""
    options = UpOptions.model_validate_json(layout.options.read_bytes())
    await asyncio.to_thread(claim, layout.state)
    context = await asyncio.to_thread(prepare, layout, options)
    policy = RestartPolicy(max_exits=options.most_ends)
    await Supervisor(specs(context), folder=layout.folder, info=info(context), policy=policy).run()


def main() -> None:
    """Run the supervisor; a failure to start is one line in its log."""
    telemetry.setup("hami-local", TelemetrySettings())
    try:
        asyncio.run(run(Layout(folder=Path(sys.argv[1]))))
    except (HamiError, ServerError, SupervisorError) as exc:
        raise SystemExit(f"hamictl up: {exc}") from None


if __name__ == "__main__":
    main()
