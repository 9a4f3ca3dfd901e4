"""`hamictl replay`: how much of a cluster's cards a policy would have in use.

Nothing is changed anywhere. The pods arrive by `hamicommon.simulation.replay`; here files are read,
and the answer is written as a table, JSON or a picture.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from hamicommon.errors import InvalidRequest
from hamicommon.simulation.replay.hosts import HostChoice
from hamicommon.simulation.replay.openb import read_trace
from hamicommon.simulation.replay.policies import check_references, checked
from hamicommon.simulation.replay.schedule import as_it_was
from hamicommon.simulation.replay.trace import Trace

from hamictl.commands.objects import Output
from hamictl.commands.replay import runs
from hamictl.commands.replay.dump import history_of, nodes_of
from hamictl.commands.replay.options import percent_of, percents_of, seconds_of, seeds_of
from hamictl.commands.runner import console, spoken_errors
from hamictl.input_file import STDIN, read_text
from hamictl.view.replay import churn as churn_view
from hamictl.view.replay import results as view
from hamictl.view.replay.picture import picture

_ARRIVING, _CHURNING, _SEED = "130", "300", "42"
_OWN = "binpack,fragmentation"


def replay(
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes", help="CSV of nodes, openb's form; - is stdin; with --from also: live"
        ),
    ] = "",
    pods: Annotated[str, typer.Option("--pods", help="CSV of pods, openb's form; - is stdin")] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="pods and cards of a cluster's own history: ledger, or a file that hamictl dump "
            "wrote; - is stdin",
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option("--since", help="with --from ledger: how far back [default: 30d]"),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="a comma list; docs/packing.md has them all [default: binpack,fragmentation; "
            "also fgd for files where no pod asks for card memory]",
        ),
    ] = "",
    seeds: Annotated[
        str,
        typer.Option("--seeds", help=f"orders of arrival, such as 42-51 [default: {_SEED}]"),
    ] = "",
    load: Annotated[
        str,
        typer.Option(
            "--load",
            help="percent of the cards that all arrivals together ask for "
            f"[default: {_ARRIVING}, with --mean-load {_CHURNING}]",
        ),
    ] = "",
    mean_load: Annotated[
        str,
        typer.Option(
            "--mean-load",
            help="pods also end: percent of the cards that they ask for in the mean, such as "
            "70,85,95",
        ),
    ] = "",
    patience: Annotated[
        str,
        typer.Option("--patience", help="how long a pod waits before it gives up, such as 6h"),
    ] = "",
    hosts: Annotated[
        HostChoice,
        typer.Option(
            "--pods-without-cards",
            help="who places them: the policy, or kube-scheduler, which spreads or packs them, or "
            "asks our scheduler for scores (extender)",
        ),
    ] = HostChoice.POLICY,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
    svg: Annotated[
        Path | None, typer.Option("--picture", help="an SVG: cards in use over what has arrived")
    ] = None,
) -> None:
    """Show how much of the cards a trace would get under each policy; nothing is changed.

    Every policy meets the same arrivals in the same order, and places them by the engine that
    places real pods. With --from these are the pods of your own cluster at their own times.
    """
    with spoken_errors():
        if svg is not None:
            _check_writable(svg)
        if source:
            if pods or mean_load or load or seeds:
                raise InvalidRequest(
                    "--from has the pods at their own times: --pods, --load, --mean-load and "
                    "--seeds are of no use with it"
                )
            if hosts is not HostChoice.POLICY:
                raise InvalidRequest(
                    "--pods-without-cards is of no use with --from: a cluster's history has the "
                    "pods with cards alone"
                )
            _look_back(source, since, nodes, checked(policy or _OWN), patience, output, svg)
            return
        chosen, orders = checked(policy) if policy else [], seeds_of(seeds or _SEED)
        if patience and not mean_load:
            raise InvalidRequest(
                "--patience is of use with --mean-load or --from alone: else no pod waits"
            )
        if since:
            raise InvalidRequest("--since is of use with --from ledger alone")
        if not nodes or not pods:
            raise InvalidRequest(
                "--nodes and --pods, or --from, are wanted: docs/packing.md has their form"
            )
        if nodes == pods == STDIN:
            raise InvalidRequest("--nodes and --pods are both -: standard input is one file alone")
        given = load or (_CHURNING if mean_load else _ARRIVING)
        target = percent_of(given, "--load", least=1, most=1000)
        means = percents_of(mean_load, "--mean-load", least=1, most=300) if mean_load else []
        patience_s = seconds_of(patience, "--patience") if patience else float("inf")
        trace = read_trace(read_text(nodes), read_text(pods), nodes_file=nodes, pods_file=pods)
        no_fgd = trace.has_card_memory or hosts is HostChoice.EXTENDER
        chosen = chosen or checked(_OWN if no_fgd else f"{_OWN},fgd")
        check_references(chosen, trace, hosts)
        if mean_load:
            _churn(trace, chosen, orders, target, (means, patience_s), hosts, output, svg)
        else:
            _arrive(trace, chosen, orders, target, hosts, output, svg)


def _arrive(
    trace: Trace,
    policies: list[str],
    seeds: list[int],
    load: float,
    hosts: HostChoice,
    output: Output,
    svg: Path | None,
) -> None:
    found = runs.arriving(trace, policies, seeds, load, hosts)
    if svg is not None:
        _write(svg, picture({name: one.curve() for name, one in found.items()}))
    if output is Output.JSON:
        console.print_json(data=view.as_json(trace, seeds, load, found) | _about(hosts))
        return
    for line in view.tables(trace, seeds, load, found):
        console.print(line)
    _note(trace, hosts)


def _churn(
    trace: Trace,
    policies: list[str],
    seeds: list[int],
    total: float,
    mean: tuple[list[float], float],
    hosts: HostChoice,
    output: Output,
    svg: Path | None,
) -> None:
    """`mean`: loads as parts of 1, and for how many seconds a pod waits."""
    mean_loads, patience_s = mean
    found = runs.coming_and_going(
        trace,
        policies,
        seeds,
        total=total,
        mean_loads=mean_loads,
        patience_s=patience_s,
        hosts=hosts,
    )
    if svg is not None:
        _write(svg, picture(churn_view.curves(found), churn_view.AXES))
    if output is Output.JSON:
        console.print_json(data=churn_view.as_json(trace, seeds, found) | _about(hosts))
        return
    for line in churn_view.tables(trace, seeds, found):
        console.print(line)
    _note(trace, hosts)


def _look_back(
    source: str,
    since: str,
    nodes: str,
    policies: list[str],
    patience: str,
    output: Output,
    svg: Path | None,
) -> None:
    history = history_of(source, since)
    trace = history.trace
    check_references(policies, trace, HostChoice.POLICY)
    if nodes:
        trace = replace(trace, nodes=nodes_of(nodes))
    stays, window = as_it_was(
        trace.pods,
        history.length_s,
        patience_s=seconds_of(patience, "--patience") if patience else float("inf"),
    )
    load, churned = runs.as_it_was(trace, policies, stays, window)
    found = {load / 100: churned}
    if svg is not None:
        _write(svg, picture(churn_view.curves(found), churn_view.AXES))
    if output is Output.JSON:
        answer = churn_view.as_json(trace, [], found) | churn_view.about(history)
        console.print_json(data=answer)
        return
    for line in churn_view.tables(trace, [], found):
        console.print(line)
    for sentence in churn_view.sentences(history, churned):
        console.print(sentence, highlight=False, markup=False)


def _about(hosts: HostChoice) -> dict[str, str]:
    return {"pods_without_cards": hosts.value}


def _note(trace: Trace, hosts: HostChoice) -> None:
    for sentence in (*view.notes(trace), *view.notes_on_hosts(hosts)):
        console.print(sentence, highlight=False, markup=False)


def _check_writable(path: Path) -> None:
    """Before runs that may take hours; leaves nothing behind."""
    known = path.exists()
    _write(path, "", mode="a")
    if not known:
        path.unlink()


def _write(path: Path, text: str, mode: Literal["w", "a"] = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise InvalidRequest(f"--picture {path}: not writable: {exc.strerror}") from exc
