"""`hamictl apply` and `delete`: create and delete pods and the objects that they need."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from hamicommon.errors import Conflict, Forbidden, InvalidRequest, NotFound
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.types import Json

from hamictl.commands.pod_names import pod_name
from hamictl.commands.runner import console, fail, run
from hamictl.exit_codes import ExitCode
from hamictl.manifests import apply_object, apply_pod, read_manifest, read_text
from hamictl.output.terminal import complain
from hamictl.target import find_target

Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", help="namespace for objects that name none", envvar="HAMICTL_NAMESPACE"
    ),
]


class Output(StrEnum):
    """Output formats of commands that have two of them."""

    TABLE = "table"
    JSON = "json"


def apply(
    file: Annotated[
        list[str],
        typer.Option("--file", "-f", help="manifest, folder of manifests, or - for stdin"),
    ],
    namespace: Namespace = "default",
) -> None:
    """Create or update the pods and other objects of a manifest.

    A workload such as a Deployment stands for the pods of its template. Ends with 1 if one object
    is refused, such as one of a kind that the cluster does not know; the others are applied.
    """
    run(_apply(file, namespace))


async def _apply(files: list[str], namespace: str) -> None:
    manifests = [
        read_manifest(text, source=source, namespace=namespace) for source, text in _sources(files)
    ]
    refused = 0
    async with open_kube_api(find_target().need_kubeconfig()) as api:
        api.on_warning = lambda text: complain(f"Warning: {text}")
        for manifest in manifests:
            # A namespace, a quota or a priority class is created before its pods.
            for item in manifest.others:
                refused += not await _report_result(item, apply_object(api, item, namespace))
            for pod in manifest.pods:
                refused += not await _report_result(pod, apply_pod(api, pod))
    if refused:
        raise typer.Exit(ExitCode.FAILED)


async def _report_result(item: Json, applying: Awaitable[str]) -> bool:
    """Print the result for the object; return False if it was refused, and continue.

    Raises: Unavailable if the API server can't be reached for the others either.
    """
    metadata = item["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '?')}*"
    shown = f"{item['kind'].lower()}/{name}"
    try:
        done = await applying
    except (InvalidRequest, Forbidden, Conflict, NotFound) as exc:
        fail(f"{shown}: {exc}")
        return False
    console.print(f"{shown} {done}")
    return True


def _sources(files: list[str]) -> list[tuple[str, str]]:
    found = []
    for file in files:
        if file == "-":
            found.append(("standard input", read_text(file)))
            continue
        path = Path(file)
        if not path.exists():
            raise InvalidRequest(f"{file} does not exist")
        paths = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
        found += [(str(each), read_text(str(each))) for each in paths]
    return found


def delete(
    names: Annotated[list[str], typer.Argument(help="pods: NAME, NAMESPACE/NAME or pod/NAME")],
    namespace: Namespace = "default",
    now: Annotated[bool, typer.Option("--now", help="force (grace period 1 s)")] = False,
) -> None:
    """Delete pods."""
    run(_delete(names, namespace, now))


async def _delete(names: list[str], namespace: str, now: bool) -> None:
    async with open_kube_api(find_target().need_kubeconfig()) as api:
        for given in names:
            space, name = pod_name(given, namespace)
            options: Json = {"gracePeriodSeconds": 1} if now else {}
            try:
                await api.delete(f"/api/v1/namespaces/{space}/pods/{name}", options or None)
            except NotFound:
                raise NotFound(f"pod {space}/{name} does not exist") from None
            console.print(f"pod/{name} deleted")
