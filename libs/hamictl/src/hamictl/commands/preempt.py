"""`hamictl preempt`: the pods to evict so that a pod fits; nothing is evicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.pod_names import pod_name, pod_names
from hamictl.commands.runner import console, run, spoken_errors
from hamictl.commands.simulate import pods_of
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import TABLE
from hamictl.target import find_target
from hamictl.view.lists import memory, table

TIMEOUT_S = 30.0
COLUMNS = ("POD", "PRIORITY", "AGE", "OWNER", "HOLDS", "PDB")


def preempt(
    pod: Annotated[
        str, typer.Argument(help="name of a waiting pod", autocompletion=pod_names)
    ] = "",
    file: Annotated[
        str,
        typer.Option("--file", "-f", help="manifest of a pod that does not exist yet; - is stdin"),
    ] = "",
    namespace: Namespace = "default",
    output: Answered = TABLE,
) -> None:
    """Show which pods would be preempted for a pod to fit; nothing is evicted.

    Only pods of a lower priority are considered, and no pod of a plan can be left out. Ends with
    status 6 when there is no plan.
    """
    if bool(pod) == bool(file):
        raise typer.BadParameter(
            "name of a waiting pod's name, or a file with -f", param_hint="POD"
        )
    with spoken_errors():
        body = {"pod": _one_pod(file, namespace)} if file else _pod_reference(pod, namespace)
    answer = run(_ask(body))
    if output.for_people:
        show(answer)
    else:
        render.write_document(answer, output)
    if not answer["fits_now"] and not answer["plans"]:
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


def _one_pod(file: str, namespace: str) -> Json:
    pods = pods_of(file, namespace)
    if len(pods) != 1:
        raise InvalidRequest(f"{file} holds {len(pods)} pods: expected one")
    return pods[0]


def _pod_reference(given: str, namespace: str) -> dict[str, str]:
    namespace, name = pod_name(given, namespace)
    return {"namespace": namespace, "name": name}


async def _ask(body: Mapping[str, object]) -> dict[str, Any]:
    scheduler = find_target().scheduler_client()
    answer: dict[str, Any] = await scheduler.post("/v1/preempt", body, timeout_s=TIMEOUT_S)
    return answer


def show(answer: Mapping[str, Any]) -> None:
    """Print the best plan with its victims, the next best in a line, and the pods left out."""
    name = f"{answer['namespace']}/{answer['name']}"
    _print(f"{name} (priority {answer['priority']}) {answer['summary']}")
    for plan in answer["plans"][:1]:
        if plan["victims"]:
            console.print(table("", COLUMNS, map(_row, plan["victims"])))
        for pod in plan["ending"]:
            _print(f"ends already: {pod}")
    for plan in answer["plans"][1:]:
        pods = [each["pod"] for each in plan["victims"]]
        _print(f"next: {plan['node']}, {', '.join(pods) or 'pods that end already'}")
    for note in answer["notes"]:
        _print(f"note: {note}")


def _print(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(victim: Mapping[str, Any]) -> tuple[str, ...]:
    budgets = ", ".join(f"{each['name']} allows {each['allowed']}" for each in victim["budgets"])
    return (
        victim["pod"],
        str(victim["priority"]),
        duration(victim["age_s"]),
        victim["owner"] or "none",
        ", ".join(_holds(victim["held"])),
        budgets or "none",
    )


def _holds(held: list[dict[str, Any]]) -> Iterator[str]:
    for each in held:
        cores = f" and {each['core_percent']} %" if each["core_percent"] else ""
        yield f"{memory(each['memory_mib'])}{cores} of card {each['index']}"


def duration(age_s: int | None) -> str:
    """Return an age as kubectl writes it: 45s, 12m, 3h12m, 4d5h.

    >>> [duration(each) for each in (45, 725, 11530, 363600, None)]
    ['45s', '12m5s', '3h12m', '4d5h', 'unknown']
    """
    if age_s is None:
        return "unknown"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for unit, size in units:
        amount, age_s = divmod(age_s, size)
        if amount or parts:
            parts.append(f"{amount}{unit}" if amount else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"
