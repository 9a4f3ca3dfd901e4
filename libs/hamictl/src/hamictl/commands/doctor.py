"""`hamictl doctor`: check the parts of an installation, in the order of their dependencies.

Every part that can be reached is asked; the others are looked up in the cluster. A part whose state
can't be determined is unknown, neither well nor missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import typer
from hamicommon.admission.registration import ca_bundle_problem
from hamicommon.errors import Forbidden, HamiError, Unavailable
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json

from hamictl.commands import installed_parts
from hamictl.commands.installed_parts import (
    NAMESPACE,
    PartFinding,
    PartState,
    missing,
    read,
    unknown,
    well,
    wrong,
)
from hamictl.commands.options import Answered
from hamictl.commands.runner import run
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import TABLE, Records, TableColumn, plain_column
from hamictl.output.terminal import now_text, shown_time
from hamictl.questions import QuestionClient
from hamictl.scheduler_client import SchedulerAddress, SchedulerClient
from hamictl.target import Installation, find_target
from hamictl.view.cluster_state import binding_row
from hamictl.view.lists import vain_setting

CONNECT_S = 3.0
STALE = timedelta(minutes=2)
"""Time after which an agent's last report is too old."""
PAGE = "docs/hamictl-on-a-cluster.md"


_NEEDS = {
    "scheduler": ("Postgres",),
    "agents": ("Postgres", "NATS", "scheduler"),
    "metrics": ("Postgres", "NATS"),
}
"""Parts on which a part depends, by its name."""
_GLYPHS = {
    PartState.WELL: "●",
    PartState.MISSING: "✖",
    PartState.UNKNOWN: "?",
    PartState.WRONG: "!",
}
SETTINGS_SHOWN = 3
SET_TO_LOCK = "binding is set to lock"
"""Reason that a node-agent reports for its setting."""


def doctor(output: Answered = TABLE) -> None:
    """Check each part of the installation and name the next step.

    Exits with 6 if a part is missing. Quotas and cordons without effect are shown too.
    """
    found = run(examine_parts(find_target()))
    rows = [
        {"part": f.part, "state": f.state.value, "detail": f.detail, "next": f.next_step or None}
        for f in found
    ]
    columns = (
        plain_column("PART", "part"),
        TableColumn("STATUS", lambda row: f"{_GLYPHS[PartState(row['state'])]} {row['state']}"),
        plain_column("DETAIL", "detail"),
        plain_column("NEXT", "next", absent=""),
    )
    shown = Records(
        kind="Part",
        plural="parts",
        columns=columns,
        rows=rows,
        name=lambda row: f"part/{row['part']}",
        as_of=now_text(),
    )
    render.write(shown, output)
    if any(each.state is PartState.MISSING for each in found):
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


async def examine_parts(target: Installation) -> list[PartFinding]:
    """Check all parts, in the order of their dependencies."""
    if target.kubeconfig is None or target.local:
        return await _local(target)
    try:
        async with open_kube_api(target.kubeconfig) as api:
            seen = await read(api)
            found = [await _api_server(api), *installed_parts.findings(seen)]
            binding = await _part("binding", lambda: _binding(api), "")
    except HamiError as exc:
        return [missing("API server", str(exc), "kubectl cluster-info")]
    if seen.elsewhere:
        return await _local(target)
    answered = await asyncio.gather(*(_ask_part(target, each) for each in found))
    settings = await _settings(target, answered)
    return [*behind(list(zip(found, answered, strict=True))), binding, *settings]


def behind(pairs: Sequence[tuple[PartFinding, PartFinding]]) -> list[PartFinding]:
    """Return the answers of the parts; one that only lacks an earlier part names that as the cause.

    The scheduler answers for the agents and their reports.
    """
    found: list[PartFinding] = []
    for installed, answered in pairs:
        lacking = [
            each.part
            for each in found
            if each.part in _NEEDS.get(answered.part, ()) and each.state is PartState.MISSING
        ]
        if installed.state is PartState.WELL and answered.state is PartState.MISSING and lacking:
            first = f"repair {' and '.join(lacking)} first"
            detail = "; ".join(filter(None, (installed.detail, answered.detail)))
            answered = unknown(answered.part, detail, first)
        found.append(answered)
    return found


async def _ask_part(target: Installation, found: PartFinding) -> PartFinding:
    """Ask the part for its state, if its pods are ready and its address is known."""
    ask = {"scheduler": _scheduler, "agents": _agents, "metrics": _metrics}.get(found.part)
    address = target.metrics.url if found.part == "metrics" else target.scheduler.url
    if ask is None or found.state is not PartState.WELL:
        return found
    if not address:
        variable = "HAMI_METRICS_URL" if found.part == "metrics" else "HAMI_SCHEDULER_URL"
        return well(found.part, f"{found.detail}; not asked, as {variable} is not set")
    return await _part(found.part, lambda: ask(target), PAGE)


async def _local(target: Installation) -> list[PartFinding]:
    """Check services that run on this machine, or in its containers."""
    backends = {"postgres": target.postgres_dsn, **target.backends}
    step = "hamictl down, then hamictl up" if target.local else "see its log"
    asked = await asyncio.gather(
        *(
            _backend(part, backends.get(part.lower()), step)
            for part in ("Postgres", "Redis", "NATS")
        ),
        _part("scheduler", lambda: _scheduler(target), _log(target.scheduler)),
        _part("agents", lambda: _agents(target), ""),
        _part("metrics", lambda: _metrics(target), _log(target.metrics)),
    )
    parts = behind([(well(each.part, ""), each) for each in asked])
    control_plane, binding = await _control_plane(target)
    return [*control_plane, *parts, *binding, *await _settings(target, asked)]


def _log(service: SchedulerAddress) -> str:
    """Return the file of the service's log; empty if its address is unknown."""
    return service.log or ("see its log" if service.url else "")


async def _control_plane(target: Installation) -> tuple[list[PartFinding], list[PartFinding]]:
    """Check the API server, the webhook, and the nodes' way of binding."""
    found: list[PartFinding] = []
    binding: list[PartFinding] = []
    if target.kubeconfig is None:
        found.append(
            missing("API server", "no cluster is configured", "hamictl up, or set KUBECONFIG=FILE")
        )
    else:
        try:
            async with open_kube_api(target.kubeconfig) as api:
                found.append(await _api_server(api))
                found.append(await _part("webhook", lambda: _webhook(api), ""))
                binding.append(await _part("binding", lambda: _binding(api), ""))
        except HamiError as exc:
            found.append(missing("API server", str(exc), "kubectl cluster-info"))
    return found, binding


async def _part(
    part: str, examine: Callable[[], Awaitable[PartFinding]], next_step: str
) -> PartFinding:
    try:
        return await examine()
    except HamiError as exc:
        return missing(part, str(exc), next_step)


async def _settings(target: Installation, found: Sequence[PartFinding]) -> list[PartFinding]:
    """Check rules of the ledger, and quotas and cordons without effect.

    Both are unknown if the scheduler can't be reached.
    """
    scheduler = next((each for each in found if each.part == "scheduler"), None)
    if scheduler is None:
        return []
    if not target.scheduler.url:
        return _unknown_settings("not asked, as HAMI_SCHEDULER_URL is not set")
    silent = f"scheduler did not answer at {target.scheduler.url}"
    if scheduler.state is PartState.MISSING:
        return _unknown_settings(silent, "repair scheduler first")
    client = SchedulerClient(target.scheduler)
    try:
        rows = await client.rows_if_known("/v1/vain-settings")
        broken = await client.rows_if_known("/v1/broken-promises")
    except Forbidden as exc:
        return _unknown_settings(str(exc))
    except HamiError as exc:
        return _unknown_settings(f"{silent}: {exc}")
    ledger = [] if broken is None else [ledger_finding([str(row["sentence"]) for row in broken])]
    return ledger if rows is None else [*ledger, settings_finding(rows)]


def _unknown_settings(why: str, next_step: str = "") -> list[PartFinding]:
    return [unknown(part, why, next_step) for part in ("ledger", "settings")]


def ledger_finding(broken: Sequence[str]) -> PartFinding:
    """Return the finding about the ledger's rules, as `hamictl db check` checks them."""
    if not broken:
        return well("ledger", "its counters, grants and history agree with each other")
    return wrong("ledger", _first_of(broken), "hamictl db check")


def _first_of(texts: Sequence[str]) -> str:
    """Return the first of the texts, and the number of the others."""
    more = len(texts) - SETTINGS_SHOWN
    return "; ".join(texts[:SETTINGS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def settings_finding(rows: Sequence[Mapping[str, Any]]) -> PartFinding:
    """Return the finding about users' settings without effect."""
    if not rows:
        return well("settings", "every quota and every cordon of a card has an effect")
    pages = {"ResourceQuota": "docs/tasks.md (Quotas)", "Node": "docs/operations.md (One card)"}
    next_step = ", ".join(dict.fromkeys(pages[str(row["kind"])] for row in rows))
    return wrong("settings", _first_of([vain_setting(row) for row in rows]), next_step)


async def _api_server(api: KubeApi) -> PartFinding:
    version = await api.get("/version")
    return well("API server", f"{api.server_url}, {version.get('gitVersion', 'version unknown')}")


async def _binding(api: KubeApi) -> PartFinding:
    try:
        nodes = (await api.get("/api/v1/nodes")).get("items", [])
    except Forbidden:
        return unknown("binding", "no permission to list nodes")
    return binding_finding(nodes)


def binding_finding(nodes: Sequence[Json]) -> PartFinding:
    """Return the finding about nodes that start one pod at a time because they lack late binding.

    A node that an operator has configured for this is well.
    """
    shown = {str(node["metadata"]["name"]): binding_row(node) for node in nodes}
    known = {name: row for name, row in shown.items() if row["binding"]}
    if not known:
        return unknown("binding", "no node-agent has reported its node's way of binding")
    held_up = [
        f"{name}: {row['binding_reason']}"
        for name, row in known.items()
        if row["binding"] == "lock" and row["binding_reason"] != SET_TO_LOCK
    ]
    late = sum(row["binding"] == "late" for row in known.values())
    if not held_up:
        locked = len(known) - late
        by_setting = f", {locked} use the node lock, as configured" if locked else ""
        return well("binding", f"{late} nodes bind late{by_setting}")
    detail = f"{len(held_up)} of {len(known)} nodes can't bind late and take one pod at a time: "
    step = "docs/node-agent.md (Late binding)"
    return wrong("binding", f"{detail}{_first_of(held_up)}", step)


async def _webhook(api: KubeApi) -> PartFinding:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    registered = [
        item
        for item in (await api.get(path)).get("items", [])
        if "hami" in item["metadata"]["name"]
    ]
    if not registered:
        return missing(
            "webhook", "no MutatingWebhookConfiguration of HAMi", "kubectl apply -k k8s/base"
        )
    names = ", ".join(item["metadata"]["name"] for item in registered)
    for item in registered:
        if problem := ca_bundle_problem(item):
            step = "run the Job of its certificate again, or see cert-manager"
            return missing("webhook", f"the API server does not trust it: {problem}", step)
    return well("webhook", f"{names} is registered")


async def _scheduler(target: Installation) -> PartFinding:
    address = target.need_scheduler()
    nodes = await SchedulerClient(address).rows("/v1/nodes")
    return well("scheduler", f"{address.url} is reachable, {len(nodes)} nodes registered")


async def _backend(part: str, url: str | None, step: str) -> PartFinding:
    return (
        await _check_connection(part, url, step)
        if url
        else unknown(part, "its address is not configured")
    )


async def _check_connection(part: str, url: str, step: str) -> PartFinding:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        # For example a DSN of several servers.
        return unknown(part, "its address names several servers")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as exc:
        why = str(exc) or f"no answer within {CONNECT_S:g} s"
        return missing(part, f"{host}:{port}: {why}", step)
    writer.close()
    return well(part, f"{host}:{port} accepts connections")


async def _agents(target: Installation) -> PartFinding:
    rows = [
        row for row in await target.scheduler_client().rows("/v1/nodes") if row["gone_at"] is None
    ]
    if not rows:
        return missing(
            "agents",
            "no GPU node has registered",
            f"kubectl --namespace {NAMESPACE} get daemonset hami-node-agent",
        )
    silent = _silent(rows, datetime.now(UTC))
    if silent:
        named = ", ".join(f"{name} (since {shown_time(at)})" for name, at in silent[:5])
        return missing(
            "agents", f"{len(silent)} of {len(rows)} do not report: {named}", "see its log"
        )
    cards = sum(row["cards"] for row in rows)
    sick = sum(row["cards"] - row["healthy_cards"] for row in rows)
    trouble = f", {sick} of them unhealthy" if sick else ""
    return well("agents", f"{len(rows)} nodes with {cards} cards report{trouble}")


def _silent(rows: Sequence[Mapping[str, Any]], now: datetime) -> list[tuple[str, str | None]]:
    """Return nodes whose agents have not reported for long; HAMi's plugin reports differently."""
    return [
        (str(row["name"]), row["inventory_at"])
        for row in rows
        if row["source"] == "agent"
        and (
            row["inventory_at"] is None
            or now - datetime.fromisoformat(str(row["inventory_at"])) > STALE
        )
    ]


async def _metrics(target: Installation) -> PartFinding:
    client = QuestionClient(target)
    questions = await client.questions()
    if not questions:
        raise Unavailable("reachable, but without named questions")
    name = await client.cluster_name()
    of = f" about {name}" if name else ""
    return well(
        "metrics", f"{target.metrics.url} is reachable, {len(questions)} named questions{of}"
    )
