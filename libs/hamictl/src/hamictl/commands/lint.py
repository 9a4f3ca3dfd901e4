"""`hamictl lint`: check pods and quotas against admission before they are created.

By default the webhook's own code answers, in this process; with `--cluster DUMP` it also knows the
cards of a cluster. `--live` asks the running system by a dry run, so that its quotas, cards and
configuration count. `--jsonl` is the format for programs.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import orjson
import typer
from hamicommon.admission.idle_cards import IdleCards
from hamicommon.admission.lint import Linter, as_json, is_quota
from hamicommon.admission.mistakes.queued_jobs import is_queued
from hamicommon.admission.registration import CONFIGURATION_PATH, ca_bundle_problem
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import (
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
    Knowledge,
    NeverFits,
)
from hamicommon.errors import Conflict, Forbidden, HamiError, NotFound, Unavailable
from hamicommon.k8s.client import Expired, KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.settings import TamperingMode
from hamicommon.simulation.cluster import read_cluster
from hamicommon.vendors.registry import Vendors

from hamictl.commands import simulate
from hamictl.commands.objects import Namespace, Output
from hamictl.commands.runner import console, run_interruptible, spoken_errors
from hamictl.commands.simulate import Ascend, ConfigFile, Iluvatar, served_vendors
from hamictl.exit_codes import ExitCode, WrongUsage
from hamictl.manifests import read_text, with_namespace
from hamictl.output.terminal import note
from hamictl.target import find_target

SCHEDULER_NAME = "hami-scheduler"
_NO_RIGHTS = re.compile(r"cannot create resource|\(401\)$")


def lint(
    file: simulate.Manifests = [],  # noqa: B006 (typer reads it, nobody writes it)
    live: Annotated[
        bool, typer.Option("--live", help="also ask the running system, by a dry run")
    ] = False,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help='read lines {"name", "pod"}, write one answer each'),
    ] = False,
    cluster: simulate.ClusterFile = "",
    device_config: ConfigFile = None,
    enable_ascend: Ascend = False,
    enable_iluvatar: Iluvatar = False,
    node_policy: simulate.NodePolicy = "binpack",
    gpu_policy: simulate.GpuPolicy = "spread",
    scheduler_name: Annotated[
        str, typer.Option("--scheduler-name", help="scheduler name of the webhook's configuration")
    ] = SCHEDULER_NAME,
    force: Annotated[
        bool,
        typer.Option(
            "--force-overwrite-default-scheduler/--no-force-overwrite-default-scheduler",
            help="take over pods that name default-scheduler, as in HAMi",
        ),
    ] = True,
    never_fits: Annotated[
        NeverFits,
        typer.Option(
            "--never-fits", help="with --cluster: verdict for pods that no node could ever take"
        ),
    ] = "warn",
    tampering: Annotated[
        TamperingMode,
        typer.Option(
            "--tampering",
            help="how the webhook treats variables and mounts that lift a slice's limits "
            "(HAMI_ADMISSION_TAMPERING)",
        ),
    ] = "refuse",
    trusted_namespaces: Annotated[
        str,
        typer.Option(
            "--trusted-namespaces",
            help="comma list of namespaces whose pods may set variables and mounts that lift a "
            "slice's limits (HAMI_ADMISSION_TRUSTED_NAMESPACES)",
        ),
    ] = "",
    priority_namespaces: Annotated[
        str | None,
        typer.Option(
            "--priority-namespaces",
            help="comma list of namespaces whose pods may set a priority below 1, before others "
            "(HAMI_ADMISSION_PRIORITY_NAMESPACES; default: all, with a warning)",
        ),
    ] = None,
    namespace: Namespace = "default",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Check pods and quotas against admission before creating them.

    Of a queue's Jobs, requests that Kueue counts wrongly are warned of. Exits with 6 if a pod
    would be refused.
    """
    with spoken_errors():
        vendors = served_vendors(device_config, enable_ascend, enable_iluvatar)
        # Admission does not use the installation's policy; a mistyped one is reported anyway.
        simulate.policy_of(node_policy, gpu_policy)
        rules = AdmissionRules(
            vendors=vendors,
            scheduler_name=scheduler_name,
            force_overwrite_default_scheduler=force,
            never_fits=never_fits,
            tampering=TamperingPolicy(
                mode=tampering,
                trusted_namespaces=_namespaces(trusted_namespaces),
                priority_namespaces=None
                if priority_namespaces is None
                else _namespaces(priority_namespaces),
            ),
        )
        about = AdmissionCircumstances(
            knowledge=_knowledge(cluster, vendors) if cluster else Knowledge()
        )
        linter = Linter(rules=rules, about=about)
        if jsonl:
            _batch(linter, live)
            return
        if not file:
            raise WrongUsage("-f is required, or --jsonl")
        objects = [item for each in file for item in _judged_of(each, namespace)]
        verdicts = (
            run_interruptible(_live(linter, objects))
            if live
            else [linter.verdict(each) for each in objects]
        )
    _show([_name(each) for each in objects], verdicts, output)
    if not live and not cluster and any(map(_chooses_cards, objects)):
        note("annotations that choose cards were not checked: use --live or --cluster")
    if not all(verdict.allowed for verdict in verdicts):
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


def _judged_of(source: str, namespace: str) -> list[Json]:
    """Return pods, ResourceQuotas and queued Jobs of a file; print other objects' names."""
    manifest = simulate.manifest_of(source, namespace)
    others = [item for item in manifest.others if is_quota(item) or is_queued(item)]
    for item, name in zip(manifest.others, manifest.left_out, strict=True):
        if item not in others:
            console.print(f"{name} skipped: not a pod or a workload", style="yellow")
    jobs = filter(is_queued, manifest.workloads)
    return [*manifest.pods, *(with_namespace(item, namespace) for item in (*others, *jobs))]


def _chooses_cards(item: Json) -> bool:
    """Return whether an annotation chooses cards by type or uuid."""
    written = (item.get("metadata") or {}).get("annotations") or {}
    return any(key.partition("/")[2].startswith(("use-", "nouse-", "no-use-")) for key in written)


def _namespaces(listed: str) -> frozenset[str]:
    return frozenset(name for part in listed.split(",") if (name := part.strip()))


def _knowledge(source: str, vendors: Vendors) -> Knowledge:
    """Return the cards of a dump, as idle ones."""
    nodes = [
        item for item in simulate.items_of(read_text(source), source) if item.get("kind") == "Node"
    ]
    found = read_cluster(nodes, (), vendors)
    for problem in found.problems:
        console.print(f"skipped: {problem}", style="yellow", highlight=False)
    cards = IdleCards(vendors)
    for node in found.nodes:
        devices = [state.usage.device for state in found.view.cards(node)]
        cards.set_node(node, devices, found.pair_scores.get(node))
    return Knowledge(cards=cards)


def _batch(linter: Linter, live: bool) -> None:
    out = sys.stdout.buffer
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if not line.strip():
            continue
        answer = linter.answer_line(line, number)
        if live and answer["allowed"]:
            case = orjson.loads(line)
            [verdict] = run_interruptible(_live(linter, [case["pod"]]))
            answer = as_json(answer["name"], verdict)
        out.write(orjson.dumps(answer) + b"\n")
        # The caller may wait for this answer before the next question.
        out.flush()


async def _live(linter: Linter, pods: list[Json]) -> list[AdmissionResult]:
    """Return the running system's answers; the patch is computed here."""
    async with open_kube_api(find_target().need_kubeconfig()) as api:
        with suppress(NotFound, Forbidden):
            if problem := ca_bundle_problem(await api.get(CONFIGURATION_PATH)):
                raise Unavailable(
                    f"the API server can't call the webhook: {problem}; `hamictl doctor` names the "
                    "next step"
                )
        return [
            linter.verdict(item)
            if is_queued(item)
            else await _ask_server(api, item, linter.verdict(item))
            for item in pods
        ]


async def _ask_server(api: KubeApi, pod: Json, here: AdmissionResult) -> AdmissionResult:
    metadata = pod.get("metadata") or {}
    namespace = metadata.get("namespace") or "default"
    warnings: list[str] = []
    api.on_warning = warnings.append
    try:
        path = f"/api/v1/namespaces/{namespace}/{'resourcequotas' if is_quota(pod) else 'pods'}"
        try:
            await api.create(path, pod, dryRun="All")
        except Conflict:
            # An object of this name exists: the dry run uses a generated name instead.
            warnings.clear()
            named = {**metadata, "generateName": f"{metadata['name']}-"}
            del named["name"]
            await api.create(path, {**pod, "metadata": named}, dryRun="All")
    except HamiError as exc:
        # A 403 is a verdict on the pod, unless this user lacks rights.
        refused = isinstance(exc, Forbidden) and not _NO_RIGHTS.search(str(exc))
        if isinstance(exc, Unavailable | Expired) and not refused:
            raise
        return AdmissionResult(
            allowed=False, reason=here.reason, message=str(exc), warnings=tuple(warnings)
        )
    return replace(
        here, allowed=True, message=here.message if here.allowed else "", warnings=tuple(warnings)
    )


def _name(pod: Json) -> str:
    metadata = pod.get("metadata") or {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    shown = f"{metadata.get('namespace', 'default')}/{name}"
    return f"{pod['kind']} {shown}" if is_quota(pod) or is_queued(pod) else shown


def _show(names: list[str], verdicts: list[AdmissionResult], output: Output) -> None:
    if output is Output.JSON:
        items = [as_json(name, verdict) for name, verdict in zip(names, verdicts, strict=True)]
        console.print_json(data={"items": items})
        return
    for name, verdict in zip(names, verdicts, strict=True):
        for line in _as_text(name, verdict):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _as_text(name: str, verdict: AdmissionResult) -> list[str]:
    if not verdict.allowed:
        head = f"{name} would be refused: {verdict.message}"
    elif verdict.reason == "queued-job":
        head = f"{name} is counted {'wrongly' if verdict.warnings else 'rightly'} by its queue"
    elif verdict.reason == "no-cards":
        head = f"{name} would be admitted: it asks for no card"
    else:
        head = f"{name} would be admitted"
        if verdict.message:
            head = f"{head}: {verdict.message}"
    warned = [f"  warning: {each}" for each in verdict.warnings]
    changed = [f"  {_step(each)}" for each in verdict.patch]
    return [head, *warned, *changed]


def _step(step: Json) -> str:
    """Format one operation of a patch: `add /spec/schedulerName "hami-scheduler"`."""
    value = f" {orjson.dumps(step['value']).decode()}" if "value" in step else ""
    return f"{step['op']} {step['path']}{value}"
