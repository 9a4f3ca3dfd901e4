"""`hamictl explain`: why a pod is on its node or waits, for a pod or a workload's pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import quote

import typer
from hamicommon.errors import NotFound, Unavailable
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json, JsonMapping

from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.pod_names import pod_name, pod_names
from hamictl.commands.runner import console, run
from hamictl.commands.workloads import explain_workload, workload_name
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import TABLE, OutputFormat, Records, Row, text_of
from hamictl.output.terminal import note, now_text
from hamictl.scheduler_client import SchedulerClient
from hamictl.target import Installation, find_target
from hamictl.view import cluster_state, lists
from hamictl.view.explanation import explanation, near_misses, near_misses_table
from hamictl.view.history import gone_sentence

_APPS, _BATCH = "/apis/apps/v1", "/apis/batch/v1"
KINDS = {
    name: kind
    for kind, names in {
        ("Deployment", _APPS, "deployments"): ("deploy", "deployment", "deployments"),
        ("ReplicaSet", _APPS, "replicasets"): ("rs", "replicaset", "replicasets"),
        ("StatefulSet", _APPS, "statefulsets"): ("sts", "statefulset", "statefulsets"),
        ("DaemonSet", _APPS, "daemonsets"): ("ds", "daemonset", "daemonsets"),
        ("Job", _BATCH, "jobs"): ("job", "jobs"),
        ("CronJob", _BATCH, "cronjobs"): ("cj", "cronjob", "cronjobs"),
        ("ReplicationController", "/api/v1", "replicationcontrollers"): (
            *("rc", "replicationcontroller", "replicationcontrollers"),
        ),
    }.items()
    for name in names
}
"""Names of kinds, as in kubectl -> the kind, and the path of its objects."""


GROUP = "group/"


def owner_of(given: str) -> tuple[str, str] | None:
    """Return kind and name of `deploy/train`; None if the argument names a pod."""
    kind, slash, name = given.partition("/")
    return (kind, name) if slash and name and kind.lower() in KINDS else None


async def pods_of_owner(target: Installation, kind: str, name: str, namespace: str) -> Records:
    """List a workload's pods, each with its slices or the reason of its waiting.

    Raises: NotFound if there is no such workload, or it has no pod; HamiError.
    """
    scheduler = target.scheduler_client()
    async with open_kube_api(target.need_kubeconfig()) as api:
        selectors = await _selectors(api, kind, name, namespace)
        states = await asyncio.gather(
            *(
                cluster_state.look(api, scheduler, namespace=namespace, selector=selector)
                for selector in selectors
            )
        )
        rows = [row for state in states for row in cluster_state.pod_rows(state)]
        if not rows:
            raise NotFound(await _why_none(api, kind, name, namespace))
    return lists.pods(rows, now_text())


async def _selectors(api: KubeApi, kind: str, name: str, namespace: str) -> list[str]:
    """Return the label selectors of the workload's pods; a CronJob's are those of its Jobs."""
    title, group, plural = KINDS[kind.lower()]
    folder = f"{group}/namespaces/{namespace}"
    try:
        owner = await api.get(f"{folder}/{plural}/{name}")
    except NotFound:
        raise NotFound(
            f"{title} {namespace}/{name} does not exist; if {kind} is a namespace: "
            f"hamictl explain {name} --namespace {kind}"
        ) from None
    if title != "CronJob":
        return [label_selector(owner)]
    jobs = (await api.get(f"{folder}/jobs")).get("items") or ()
    uid = owner["metadata"]["uid"]
    return [label_selector(job) for job in jobs if uid in _owner_uids(job)]


def _owner_uids(item: JsonMapping) -> Sequence[str]:
    return [str(each.get("uid")) for each in item["metadata"].get("ownerReferences") or ()]


def label_selector(owner: JsonMapping) -> str:
    """Return the workload's `spec.selector` as a query parameter.

    >>> label_selector({"spec": {"selector": {"matchLabels": {"app": "a"}, "matchExpressions": [
    ...     {"key": "tier", "operator": "NotIn", "values": ["x", "y"]},
    ...     {"key": "old", "operator": "DoesNotExist"}]}}})
    'app=a,tier notin (x,y),!old'
    """
    selector: Json = (owner.get("spec") or {}).get("selector") or {}
    # The selector of a ReplicationController is the labels themselves.
    plain = "matchLabels" not in selector and "matchExpressions" not in selector
    labels = selector if plain else selector.get("matchLabels") or {}
    return ",".join(
        [
            *(f"{key}={value}" for key, value in labels.items()),
            *map(_expression, () if plain else selector.get("matchExpressions") or ()),
        ]
    )


def _expression(each: dict[str, Any]) -> str:
    key, operator = each["key"], each["operator"]
    if operator in ("In", "NotIn"):
        return f"{key} {operator.lower()} ({','.join(each.get('values') or ())})"
    return key if operator == "Exists" else f"!{key}"


async def _why_none(api: KubeApi, kind: str, name: str, namespace: str) -> str:
    """Return why the controller could not create pods (for a Deployment: its ReplicaSets)."""
    title = KINDS[kind.lower()][0]
    refusals = await _refusals(api, namespace, lambda maker: maker.startswith(name))
    why = f": its controller failed to create one: {refusals[-1]}" if refusals else ""
    return f"{title} {namespace}/{name} has no pod{why}"


async def _refusals(api: KubeApi, namespace: str, made_by: Callable[[str], bool]) -> list[str]:
    """Return messages of controllers that failed to create a pod, by the controller's name."""
    events = (await api.get(f"/api/v1/namespaces/{namespace}/events")).get("items") or ()
    return [
        str(event.get("message", ""))
        for event in events
        if event.get("reason") == "FailedCreate"
        and made_by(str(event["involvedObject"].get("name", "?")))
    ]


CLOSE_NAMED = 3


async def pod_uid(target: Installation, namespace: str, name: str) -> str:
    """Return the uid of the pod in the cluster, otherwise of the newest one in the ledger.

    `name` may also be a uid that the ledger has. Raises: NotFound if neither has the pod.
    """
    existing = await existing_uid(target, namespace, name)
    if existing is not None:
        return existing
    rows = await pods_named(target.scheduler_client(), namespace, name)
    if not rows:
        raise NotFound(await why_unknown(target, namespace, name))
    return str(rows[0]["pod_uid"])


async def pod_in_cluster(target: Installation, namespace: str, name: str) -> Json | None:
    """Return the pod's object; None: not in the cluster, or no cluster is configured.

    Raises: Unavailable, Forbidden.
    """
    if target.kubeconfig is None:
        return None
    try:
        async with open_kube_api(target.kubeconfig) as api:
            return await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    except NotFound:
        return None


async def existing_uid(target: Installation, namespace: str, name: str) -> str | None:
    """Return the uid of the pod in the cluster; None: not there, or the cluster does not answer."""
    try:
        pod = await pod_in_cluster(target, namespace, name)
    except Unavailable:
        return None
    return None if pod is None else str(pod["metadata"]["uid"])


async def why_unknown(target: Installation, namespace: str, name: str) -> str:
    """Explain why a pod is unknown: admission refused it, or the name is misspelt."""
    unknown = f"pod {namespace}/{name} not found in the cluster or the ledger"
    held = await target.scheduler_client().rows("/v1/allocations", namespace=namespace)
    known = [str(row["pod_name"]) for row in held]
    if target.kubeconfig is None:
        return unknown + did_you_mean(name, known)
    async with open_kube_api(target.kubeconfig) as api:
        refusals = await _refusals(api, namespace, name.startswith)
        pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    known += [str(pod["metadata"]["name"]) for pod in pods]
    if meant := did_you_mean(name, known):
        return unknown + meant
    if refusals:
        return f"{unknown}; its controller failed to create it: {refusals[-1]}"
    return (
        f"{unknown}; if admission refused it, the output of `kubectl apply` or the events of its "
        "controller have the reason"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean train-1?` with the most similar names; empty if none is similar."""
    close = get_close_matches(name, dict.fromkeys(known), n=CLOSE_NAMED)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def explain(
    pod: Annotated[
        str,
        typer.Argument(
            help="name of a pod; deploy/NAME, job/NAME and so on list the workload's pods; "
            "group/NAME explains pods that start together, workload/NAME one of Kueue's",
            autocompletion=pod_names,
        ),
    ],
    namespace: Namespace = "default",
    output: Answered = TABLE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="exit with 6 if the pod waits")
    ] = False,
    near: Annotated[
        bool,
        typer.Option(
            "--near-misses", help="also show the cards that come closest, and what they lack"
        ),
    ] = False,
) -> None:
    """Explain why a pod waits, or why it is where it is."""
    if pod.startswith(GROUP):
        group = run(_explain_group(pod.removeprefix(GROUP), namespace, output))
        if exit_code and not group.get("fits", True):
            raise typer.Exit(ExitCode.ANSWER_IS_NO)
        return
    if workload := workload_name(pod):
        waits = run(explain_workload(find_target(), workload, namespace, output))
        if exit_code and waits:
            raise typer.Exit(ExitCode.ANSWER_IS_NO)
        return
    owner = owner_of(pod)
    if owner is not None:
        pods = run(pods_of_owner(find_target(), *owner, namespace))
        render.write(pods, output)
        waiting = [str(row["pod_name"]) for row in pods.rows if not row["node"]]
        if waiting:
            note(
                f"why a pod waits, and what would help: hamictl explain {waiting[0]} -n {namespace}"
            )
        if exit_code and waiting:
            raise typer.Exit(ExitCode.ANSWER_IS_NO)
        return
    answer = run(_explain(pod, namespace, output))
    if near and output.for_people:
        console.print(near_misses_table(near_misses(answer)))
    if exit_code and answer["outcome"] != "placed":
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


async def _explain(pod: str, namespace: str, output: OutputFormat) -> Any:
    target = find_target()
    namespace, name = pod_name(pod, namespace)
    uid = await pod_uid(target, namespace, name)
    answer = await target.scheduler_client().get(
        f"/v1/pods/{quote(uid, safe='')}/explain", namespace=namespace, name=name
    )
    if not output.for_people:
        render.write_document(answer, output)
        return answer
    # If the caller gave a uid, the answer has the pod's name.
    space, name = str(answer["namespace"] or namespace), str(answer["pod_name"] or name)
    for part in explanation(answer, name=f"{space}/{name}"):
        # Names and texts come from the cluster: nothing in them is markup.
        console.print(part, highlight=False, markup=False)
    if not answer.get("wait_end") and await _is_gone(target, space, name, uid):
        console.print(gone_sentence(answer["attempts"]), highlight=False, markup=False)
    return answer


async def _explain_group(name: str, namespace: str, output: OutputFormat) -> Any:
    path = f"/v1/groups/{quote(namespace, safe='')}/{quote(name, safe='')}"
    answer = await find_target().scheduler_client().get(path)
    if not output.for_people:
        render.write_document(answer, output)
        return answer
    for line in group_lines(answer):
        console.print(line, highlight=False, markup=False)
    return answer


def group_lines(answer: JsonMapping) -> Iterator[str]:
    """Return the lines of `explain group/NAME`."""
    pods = answer["pods"]
    quorum = answer["quorum"]
    together = f", {quorum} start together" if quorum is not None else ""
    yield f"{answer['namespace']}/{answer['group']}: {len(pods)} pods{together}"
    yield f"  {answer['summary']}"
    started = [f"{each['pod_name']} on {each['node']}" for each in pods if each["node"]]
    if started:
        yield f"  started: {', '.join(started)}"
    for each in answer.get("would_take", ()):
        yield f"  {each['pod_name']} would go to {each['node']}, {', '.join(each['devices'])}"
    if answer.get("asked"):
        pause_s = answer.get("backs_off_s")
        after = f"; tried again in {pause_s:.0f} s" if pause_s else ""
        yield f"  decided {answer['asked']} times in {answer['waits_since_s']:.0f} s{after}"
    for each in answer.get("decisions", ()):
        times = f" x{each['repeat_count']}" if each["repeat_count"] > 1 else ""
        yield f"  {text_of(each['at'])[:19]} {each['outcome']}{times}: {each['summary']}"


async def _is_gone(target: Installation, namespace: str, name: str, uid: str) -> bool:
    """Return whether the pod was deleted; False if the cluster could not be asked."""
    if target.kubeconfig is None:
        return False
    try:
        pod = await pod_in_cluster(target, namespace, name)
    except Unavailable:
        return False
    return pod is None or str(pod["metadata"]["uid"]) != uid


async def pods_named(scheduler: SchedulerClient, namespace: str, name: str) -> Sequence[Row]:
    """Return the ledger's pods of this name, placed or refused, the newest first."""
    rows = await scheduler.rows_if_known("/v1/pods", namespace=namespace, name=name)
    if rows is None:  # an older scheduler without this path
        return await allocations_named(scheduler, namespace, name)
    return rows


async def allocations_named(scheduler: SchedulerClient, namespace: str, name: str) -> Sequence[Row]:
    """Return allocations of pods with that name, the newest first; otherwise of that uid."""
    named = await scheduler.rows("/v1/allocations", namespace=namespace, pod_name=name)
    return named or await scheduler.rows("/v1/allocations", pod_uid=name)
