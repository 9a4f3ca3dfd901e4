"""`hamictl explain` and `history`: why, and what happened when."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer
from hamicommon.errors import NotFound, Unavailable
from hamicommon.k8s.client import open_kube_api

from hamictl.commands.about.pod_names import pod_names
from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.runner import console, run
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.formats import TABLE, OutputFormat
from hamictl.output.presentation import shown_time
from hamictl.output.records import Records, TableColumn
from hamictl.scheduler_client import SchedulerClient
from hamictl.settings import Settings
from hamictl.target import Installation, find_target
from hamictl.view.explanation import (
    explanation,
    near_misses,
    near_misses_table,
    score_text,
)
from hamictl.view.tables import claims_of, of


async def pod_uid(target: Installation, namespace: str, name: str) -> str:
    """The uid of a pod that exists, or of the latest one by that name in the ledger.

    Raises: NotFound when neither knows it.
    """
    if target.kubeconfig is not None:
        try:
            async with open_kube_api(target.kubeconfig) as api:
                pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
                return str(pod["metadata"]["uid"])
        except (NotFound, Unavailable):
            pass
    rows = await SchedulerClient(target.need_scheduler()).rows(
        "/v1/allocations", namespace=namespace, pod_name=name, limit="1"
    )
    if not rows:
        raise NotFound(await _why_unknown(target, namespace, name))
    return str(rows[0]["pod_uid"])


async def _why_unknown(target: Installation, namespace: str, name: str) -> str:
    """A pod that admission refused is an event of the controller that tried to create it."""
    unknown = f"pod {namespace}/{name}: neither the cluster nor the ledger knows it"
    if target.kubeconfig is None:
        return unknown
    async with open_kube_api(target.kubeconfig) as api:
        events = (await api.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
    refusals = [
        str(event.get("message", ""))
        for event in events
        if event.get("reason") == "FailedCreate"
        and name.startswith(str(event["involvedObject"].get("name", "?")))
    ]
    if refusals:
        return f"{unknown}; its controller could not create it: {refusals[-1]}"
    return (
        f"{unknown}; if admission refused it, `kubectl apply` or its controller's events "
        f"have the reason"
    )


def explain(
    pod: Annotated[str, typer.Argument(help="name of a pod", autocompletion=pod_names)],
    namespace: Namespace = "default",
    output: Answered = TABLE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="end with status 6 when the pod waits")
    ] = False,
    near: Annotated[
        bool, typer.Option("--near-misses", help="also the cards that lack the least, and what")
    ] = False,
) -> None:
    """Explain why a pod is where it is, or why it waits."""
    answer = run(_explain(pod, namespace, output))
    if near and output.for_people:
        console.print(near_misses_table(near_misses(answer)))
    if exit_code and answer["outcome"] != "placed":
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


async def _explain(pod: str, namespace: str, output: OutputFormat) -> Any:
    target = find_target(Settings())
    namespace, name = pod_name(pod, namespace)
    uid = await pod_uid(target, namespace, name)
    answer = await SchedulerClient(target.need_scheduler()).get(
        f"/v1/pods/{uid}/explain", namespace=namespace, name=name
    )
    if not output.for_people:
        render.write_document(answer, output)
        return answer
    for part in explanation(answer, name=f"{namespace}/{name}"):
        # Names and texts come from the cluster: nothing in them is markup.
        console.print(part, highlight=False, markup=False)
    return answer


def history(
    pod: Annotated[
        str,
        typer.Argument(help="name of a pod, also of one that is gone", autocompletion=pod_names),
    ],
    namespace: Namespace = "default",
    output: Answered = TABLE,
) -> None:
    """Show every state that a pod's slices went through."""
    run(_history(pod, namespace, output))


async def _history(pod: str, namespace: str, output: OutputFormat) -> None:
    target = find_target(Settings())
    namespace, name = pod_name(pod, namespace)
    uid = await pod_uid(target, namespace, name)
    rows = await SchedulerClient(target.need_scheduler()).rows(f"/v1/pods/{uid}/history")
    columns = (
        TableColumn("WHEN", lambda row: shown_time(row["at"]), "at"),
        *(
            TableColumn(header, partial(_text, key), key)
            for header, key in (
                ("STATE", "state"),
                ("ATTEMPT", "attempt"),
                ("NODE", "node"),
                ("REASON", "reason"),
                ("BY", "actor"),
            )
        ),
        TableColumn("SCORE", _score, "score"),
        # Of a pod by limits the column would be empty.
        *([TableColumn("CLAIMS", claims_of)] if any(map(claims_of, rows)) else []),
    )
    name_of = f"pod/{namespace}/{name}"
    shown = Records(
        kind="Change", plural="changes", columns=columns, rows=rows, name=lambda row: name_of
    )
    render.write(shown, output)


def _score(row: Mapping[str, Any]) -> str:
    """Where the node was chosen; a grant that was adopted or restored has no policy."""
    policy = (row.get("policy") or {}).get("node")
    chosen = row["state"] == "reserved" and row["previous_state"] is None and policy
    return score_text(str(policy), row["score"]) if chosen else ""


def _text(key: str, row: Mapping[str, Any]) -> str:
    return of(row[key])


def pod_name(given: str, namespace: str) -> tuple[str, str]:
    """(namespace, name) of `train`, `pod/train`, `team-a/train` or `pod/team-a/train`."""
    own, _, name = given.removeprefix("pod/").removeprefix("pods/").rpartition("/")
    return own or namespace, name
