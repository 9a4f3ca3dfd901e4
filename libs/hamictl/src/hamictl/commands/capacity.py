"""`hamictl capacity`: how many more pods of a given size fit, by the scheduler's engine."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from hamicommon.k8s.types import Json

from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.runner import console, run, spoken_errors
from hamictl.commands.simulate import pods_of
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import API_VERSION, TABLE
from hamictl.output.terminal import note, now_text
from hamictl.target import find_target
from hamictl.view.lists import WHOLE_PERCENT, memory

MAX_PODS = 10_000
TIMEOUT_S = 60.0
NODES_NAMED = 5
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(Mi|Gi|Ti|)")
_MIB = {"": 1, "Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}


def capacity(
    gpumem: Annotated[
        str, typer.Option(help="memory per card, such as 8Gi; MiB without a unit (default: all)")
    ] = "",
    cores: Annotated[
        int, typer.Option(help="percent of a card's cores, 0 to 100; 0 means without a limit")
    ] = 0,
    gpus: Annotated[int, typer.Option(min=1, max=64, help="cards per pod")] = 1,
    file: Annotated[
        str,
        typer.Option(
            "--file", "-f", help="manifest of the pod, in place of --gpumem, --cores and --gpus"
        ),
    ] = "",
    replicas: Annotated[
        int, typer.Option(min=1, max=100_000, help="required count; exit with 6 if fewer fit")
    ] = 1,
    namespace: Namespace = "default",
    output: Answered = TABLE,
) -> None:
    """Show how many more pods of a given size would fit.

    Exits with 6 if fewer than --replicas fit. Cordoned and silent nodes are not counted. Quotas,
    CPU, selectors and taints are not checked: `explain` and `lint --live` check them.
    """
    if not 0 <= cores <= WHOLE_PERCENT:
        raise typer.BadParameter(
            f"{cores} is not a percentage of a card's cores: use 0 to {WHOLE_PERCENT}",
            param_hint="--cores",
        )
    if file and (gpumem or cores or gpus != 1):
        raise typer.BadParameter("use a file or sizes, not both", param_hint="--file")
    with spoken_errors():
        if file:
            pods = pods_of(file, namespace)
            if len({repr(each.get("spec")) for each in pods}) != 1:
                raise typer.BadParameter(
                    f"{file} has different pods: use a file with one pod", param_hint="--file"
                )
            pod, asks = pods[0], _name(pods[0])
        else:
            pod, asks = _pod(gpumem, cores, gpus)
    answer = run(_ask(pod, max(MAX_PODS, replicas)))
    if output.for_people:
        console.print(sentence(answer, asks), highlight=False, markup=False, soft_wrap=True)
        # An older scheduler does not send this field.
        for why, number in (answer.get("closed") or {}).items():
            note(f"nodes that {why}: {number} not counted")
    else:
        render.write_document(add_envelope(answer), output)
    if answer["count"] < replicas:
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


async def _ask(pod: Json, most: int) -> Any:
    scheduler = find_target().scheduler_client()
    body = {"pod": pod, "count": most}
    return await scheduler.post("/v1/simulate", body, timeout_s=TIMEOUT_S)


def add_envelope(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with the keys of every list, and a row per node."""
    rows = [{"node": node, "count": count} for node, count in sorted(answer["nodes"].items())]
    head = {"apiVersion": API_VERSION, "kind": "FitList", "asOf": now_text(), "items": rows}
    return {**head, **answer}


def sentence(answer: dict[str, Any], asks: str) -> str:
    """Return the result as text: `30 more pods of 1 x 8 GiB fit now (n2 12, n1 9, ...)`."""
    nodes = sorted(answer["nodes"].items(), key=lambda item: (-item[1], item[0]))
    if not nodes:
        return f"No more pod of {asks} fits now."
    named = ", ".join(f"{name} {count}" for name, count in nodes[:NODES_NAMED])
    rest = f", … on {len(nodes)} nodes" if len(nodes) > NODES_NAMED else ""
    least = "At least " if answer["more"] else ""
    one = answer["count"] == 1
    return (
        f"{least}{answer['count']} more {'pod' if one else 'pods'} of {asks} "
        f"{'fits' if one else 'fit'} now ({named}{rest})"
    )


def _pod(gpumem: str, cores: int, gpus: int) -> tuple[Json, str]:
    limits: dict[str, object] = {"nvidia.com/gpu": gpus}
    asks = f"{gpus} x "
    if gpumem:
        found = _AMOUNT.fullmatch(gpumem)
        if found is None:
            raise typer.BadParameter(
                f"{gpumem!r} is not an amount of memory: use 8Gi, 500Mi or a number of MiB",
                param_hint="--gpumem",
            )
        memory_mib = int(float(found[1]) * _MIB[found[2]])
        if not memory_mib:
            raise typer.BadParameter(
                "use 1 MiB or more; without the option a pod asks for a whole card's memory",
                param_hint="--gpumem",
            )
        limits["nvidia.com/gpumem"] = memory_mib
        asks += memory(memory_mib)
    else:
        asks += "a whole card's memory"
    if cores:
        limits["nvidia.com/gpucores"] = cores
        asks += f", {cores} %"
    container = {"name": "c", "image": "none", "resources": {"limits": limits}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "capacity", "namespace": "default"},
        "spec": {"containers": [container]},
    }
    return pod, asks


def _name(pod: Json) -> str:
    metadata = pod["metadata"]
    return str(metadata.get("name") or metadata.get("generateName"))
