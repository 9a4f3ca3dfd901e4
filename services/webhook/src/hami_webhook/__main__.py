"""Start hami-webhook with settings from the environment, and serve until stopped."""

from __future__ import annotations

import sys

from hamicommon import telemetry
from hamicommon.process.http_server import run
from hamicommon.settings import describe, log_unknown_variables
from pydantic import ValidationError

from hami_webhook.bootstrap import open_app
from hami_webhook.settings import Settings


def main() -> None:
    """Run `hami-webhook`."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # required fields come from variables
    except ValidationError as exc:
        sys.exit(f"hami-webhook: {describe(exc, Settings)}")
    telemetry.setup("hami-webhook", settings.telemetry)
    log_unknown_variables(Settings, others=("HAMI_WEBHOOK_CERTIFICATE_",))
    try:
        run("hami-webhook", open_app(settings))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
