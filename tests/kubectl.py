"""A kubectl that an API server understands, also one that cannot describe its objects."""

from pathlib import Path

import httpx

from tests import measured

DESCRIBED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


def kubectl_for(api: httpx.Client, kubectl: Path, folder: Path) -> None:
    """Put a `kubectl` into the new `folder`: this one, without its own validation if needed.

    Builds of the API server from some source trees answer 503 to kubectl's question for the
    schema; the server judges all the same.
    """
    folder.mkdir()
    wrapper = folder / "kubectl"
    if api.get("/openapi/v2", headers={"accept": DESCRIBED}).status_code == 200:
        wrapper.symlink_to(kubectl)
        return
    measured.note("this API server describes nothing to kubectl: applied with --validate=false")
    wrapper.write_text(
        f"""#!/usr/bin/env bash
case " $* " in *" create token "*) exec {kubectl} "$@" ;; esac
for argument in "$@"; do
    case $argument in apply | create) exec {kubectl} "$@" --validate=false ;; esac
done
exec {kubectl} "$@"
"""
    )
    wrapper.chmod(0o755)
