"""`hamictl explain workload/NAME`: quota of a Kueue Workload, and the answer of our check."""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.errors import NotFound
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.kueue import API, CONTROLLER

from hamictl.commands.runner import console
from hamictl.output import render
from hamictl.output.records import OutputFormat
from hamictl.target import Installation

_KINDS = ("wl", "workload", "workloads")


def workload_name(given: str) -> str:
    """Return the name in `workload/NAME`; empty for other arguments."""
    kind, _, name = given.partition("/")
    return name if kind.lower() in _KINDS else ""


async def explain_workload(
    target: Installation, name: str, namespace: str, output: OutputFormat
) -> bool:
    """Explain why the Workload waits; return whether it waits.

    `name`: its own, or that of the Job it was made for. Raises: NotFound, HamiError.
    """
    async with open_kube_api(target.need_kubeconfig()) as api:
        try:
            found = (await api.get(f"{API}/namespaces/{namespace}/workloads")).get("items") or []
            checks = (await api.get(f"{API}/admissionchecks")).get("items") or []
        except NotFound:
            raise NotFound("the cluster has no Kueue: it serves no kueue.x-k8s.io") from None
    named = [each for each in found if name in (each["metadata"]["name"], *owners_of(each))]
    if not named:
        raise NotFound(f"no Workload of namespace {namespace} is named {name} or made for it")
    ours = [
        check["metadata"]["name"]
        for check in checks
        if check["spec"]["controllerName"] == CONTROLLER
    ]
    answers = [answer_of(each, ours) for each in named]
    if output.for_people:
        for answer in answers:
            for line in sentences(answer):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    else:
        render.write_document({"items": answers}, output)
    return any(answer["waits"] for answer in answers)


def owners_of(workload: Json) -> list[str]:
    """Return the names of the objects for which it was made."""
    return [str(each["name"]) for each in workload["metadata"].get("ownerReferences") or ()]


def answer_of(workload: Json, ours: list[str]) -> Json:
    """Return the answer for programs; `ours`: names of our checks."""
    status = workload.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    quota = conditions.get("QuotaReserved") or {}
    is_held = quota.get("status") == "True"
    finished = conditions.get("Finished", {}).get("status") == "True"
    admitted = conditions.get("Admitted", {}).get("status") == "True"
    return {
        "workload": f"{workload['metadata']['namespace']}/{workload['metadata']['name']}",
        "made_for": owners_of(workload),
        "queue": (workload.get("spec") or {}).get("queueName", ""),
        "quota_since": quota.get("lastTransitionTime") if is_held else None,
        "quota_message": quota.get("message", ""),
        "active": (workload.get("spec") or {}).get("active", True),
        "admitted": admitted,
        "finished": finished,
        "waits": not (admitted or finished),
        "checks": [
            {
                "name": each["name"],
                "ours": each["name"] in ours,
                "state": each["state"],
                "message": each.get("message", ""),
                "since": each["lastTransitionTime"],
            }
            for each in status.get("admissionChecks") or ()
        ],
    }


def sentences(answer: Json) -> Iterator[str]:
    """Yield the answer as sentences."""
    made_for = f" (of {', '.join(answer['made_for'])})" if answer["made_for"] else ""
    head = f"{answer['workload']}{made_for}"
    if answer["finished"]:
        yield f"{head} is finished"
        return
    if not answer["active"]:
        yield f"{head} is deactivated: Kueue does not try it again"
    elif answer["admitted"]:
        yield f"{head} is admitted by queue {answer['queue']} since {answer['quota_since']}"
    elif answer["quota_since"]:
        yield f"{head} holds its quota of queue {answer['queue']} since {answer['quota_since']}"
    else:
        why = answer["quota_message"] or "Kueue has not looked at it"
        yield f"{head} waits for quota of queue {answer['queue']}: {why}"
    for check in answer["checks"]:
        whose = "whether its slices are there" if check["ours"] else "another controller's check"
        yield f"  {check['name']} ({whose}): {check['state']}: {check['message'] or '-'}"
    if answer["admitted"] and answer["made_for"]:
        yield f"  its pods: hamictl explain job/{answer['made_for'][0]}"
