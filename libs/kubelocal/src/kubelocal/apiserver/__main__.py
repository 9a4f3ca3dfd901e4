"""Run `python -m kubelocal.apiserver --data DIR --port N --tls-cert F ...`."""

from __future__ import annotations

import asyncio
import logging
import sys

from hamicommon.errors import HamiError
from pydantic import ValidationError
from pydantic_settings import CliApp

from kubelocal.apiserver.server import Settings, serve


def main() -> int:
    """Run until SIGTERM or SIGINT; return 1 if it can't start, 2 for a wrong option."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    problems: list[str] = []
    try:
        settings = CliApp.run(Settings)
    except ValidationError as error:
        for each in error.errors():
            flag = ".".join(map(str, each["loc"])).replace("_", "-")
            sys.stderr.write(f"kubelocal.apiserver: --{flag}: {each['msg']}\n")
        return 2
    try:
        asyncio.run(serve(settings))
    except* (HamiError, OSError) as group:
        problems = [str(error) for error in group.exceptions]
    for problem in problems:
        sys.stderr.write(f"kubelocal.apiserver: {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
