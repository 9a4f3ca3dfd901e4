"""`hamictl replay`: compare policies on a trace by how much of the cards would be in use.

Nothing is changed anywhere. The pods arrive by `hamireplay`; here options and files are read, and
the answer is written as a table, JSON or a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamireplay import results, runs
from hamireplay.openb import read_trace
from hamireplay.picture import ARRIVED, OVER_TIME, picture
from hamireplay.policies import HostChoice, check_published, parse_policies
from hamireplay.schedule import as_it_was

from hamictl.commands.objects import Output
from hamictl.commands.replay.ledger import history_of, nodes_of, seconds_of
from hamictl.commands.runner import console, spoken_errors
from hamictl.exit_codes import WrongUsage, wrong_usage
from hamictl.manifests import STDIN, read_text
from hamictl.view.lists import table

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MAX_SEEDS = 1000


def seeds_of(text: str) -> list[int]:
    """Parse seeds: `42-51`, `7`, or a comma list of these.

    Raises: WrongUsage with the text and what would be right.
    """
    found: dict[int, None] = {}
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first = int(match[1]) if match else 1
        last = int(match[2] or first) if match else 0
        if not 0 <= last - first < _MAX_SEEDS:
            raise WrongUsage(
                f"--seeds is {clip(text)!r}: use numbers or ranges, such as 42-51 or 7,9"
            )
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def percent_of(text: str, option: str, *, least: int, most: int) -> float:
    """Parse `130` or `130%` as a fraction.

    Raises: WrongUsage with the option, the text and what would be right.
    """
    number = text.strip().removesuffix("%")
    if not number.isascii() or not number.isdigit() or not least <= int(number) <= most:
        raise WrongUsage(f"{option} is {clip(text)!r}: use a percentage from {least} to {most}")
    return int(number) / 100


def percents_of(text: str, option: str, *, least: int, most: int) -> list[float]:
    """Parse a comma list of percentages, each once, as fractions.

    Raises: WrongUsage with the option, the text and what would be right.
    """
    pieces = [piece for piece in text.split(",") if piece.strip()] or [text]
    return list(dict.fromkeys(percent_of(p, option, least=least, most=most) for p in pieces))


def policies_of(text: str) -> list[str]:
    """Read a comma list of policies. Raises: WrongUsage naming the one that is unknown."""
    with wrong_usage():
        return parse_policies(text)


_ARRIVING, _CHURNING, _SEED = "130", "300", "42"
_OWN = "binpack,fragmentation"


def replay(
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            help="CSV of nodes in the format of Alibaba's openb trace; - is stdin; with --from, "
            "`live` takes the nodes of the cluster as they are",
        ),
    ] = "",
    pods: Annotated[
        str,
        typer.Option(
            "--pods", help="CSV of pods in the format of Alibaba's openb trace; - is stdin"
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="history of a cluster: ledger, or a file of hamictl dump; - is stdin",
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
            help="comma list of policies, see docs/simulate.md [default: binpack,fragmentation; "
            "also fgd for files whose pods ask for no card memory]",
        ),
    ] = "",
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", help=f"seeds of the order of arrival, such as 42-51 [default: {_SEED}]"
        ),
    ] = "",
    load: Annotated[
        str,
        typer.Option(
            "--load",
            help="percent of the cards that all pods together ask for "
            f"[default: {_ARRIVING}, with --mean-load {_CHURNING}]",
        ),
    ] = "",
    mean_load: Annotated[
        str,
        typer.Option(
            "--mean-load",
            help="percent of the cards that pods ask for on average, such as 70,85,95; pods "
            "end, too",
        ),
    ] = "",
    patience: Annotated[
        str,
        typer.Option("--patience", help="time after which a waiting pod gives up, such as 6h"),
    ] = "",
    hosts: Annotated[
        HostChoice,
        typer.Option(
            "--pods-without-cards",
            help="what places them: the policy; kube-scheduler, which spreads or packs them; or "
            "kube-scheduler with our scheduler's scores (extender)",
        ),
    ] = HostChoice.POLICY,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
    svg: Annotated[
        Path | None, typer.Option("--picture", help="SVG file to write: cards in use over arrivals")
    ] = None,
) -> None:
    """Compare policies on a trace of pods: how much of the cards would be in use.

    Every policy meets the same arrivals in the same order, and places them by the engine that
    places real pods. With --from these are the pods of your own cluster at their own times.
    """
    with spoken_errors():
        if svg is not None:
            _check_writable(svg)
        if source:
            if pods or mean_load or load or seeds:
                raise WrongUsage(
                    "--from has its own pods and times: leave out --pods, --load, --mean-load and "
                    "--seeds"
                )
            if hosts is not HostChoice.POLICY:
                raise WrongUsage(
                    "leave out --pods-without-cards with --from: a cluster's history only has the "
                    "pods with cards"
                )
            answer = _look_back(source, since, nodes, policies_of(policy or _OWN), patience)
        else:
            if patience and not mean_load:
                raise WrongUsage(
                    "use --patience only with --mean-load or --from: otherwise no pod waits"
                )
            if since:
                raise WrongUsage("use --since only with --from ledger")
            if not nodes or not pods:
                raise WrongUsage(
                    "--nodes and --pods, or --from, are required: docs/simulate.md has their form"
                )
            if nodes == pods == STDIN:
                raise WrongUsage("--nodes and --pods are both -: standard input is one file")
            answer = _from_files(
                nodes, pods, policy, seeds or _SEED, load, mean_load, patience, hosts
            )
        _show(answer, output, svg)


class _Answer(NamedTuple):
    """Results in every output format."""

    tables: Iterable[results.ResultTable]
    sentences: Iterable[str]
    as_json: Mapping[str, Any]
    picture: str


def _from_files(
    nodes: str,
    pods: str,
    policy: str,
    seeds: str,
    load: str,
    mean_load: str,
    patience: str,
    hosts: HostChoice,
) -> _Answer:
    chosen, orders = policies_of(policy) if policy else [], seeds_of(seeds)
    given = load or (_CHURNING if mean_load else _ARRIVING)
    total = percent_of(given, "--load", least=1, most=1000)
    mean_loads = percents_of(mean_load, "--mean-load", least=1, most=300) if mean_load else []
    patience_s = _patience_s(patience)
    trace = read_trace(read_text(nodes), read_text(pods), nodes_file=nodes, pods_file=pods)
    no_fgd = trace.has_card_memory or hosts is HostChoice.EXTENDER
    chosen = chosen or parse_policies(_OWN if no_fgd else f"{_OWN},fgd")
    check_published(chosen, trace, hosts)
    about = {"pods_without_cards": hosts.value}
    if not mean_load:
        arrived = runs.arriving(trace, chosen, orders, total, hosts)
        return _Answer(
            results.arriving_tables(trace, orders, total, arrived),
            results.notes(trace, hosts),
            results.arriving_json(trace, orders, total, arrived) | about,
            picture({name: one.curve() for name, one in arrived.items()}, ARRIVED),
        )
    found = runs.coming_and_going(
        trace,
        chosen,
        orders,
        total=total,
        mean_loads=mean_loads,
        patience_s=patience_s,
        hosts=hosts,
    )
    return _Answer(
        results.churn_tables(trace, orders, found),
        results.notes(trace, hosts),
        results.churn_json(trace, orders, found) | about,
        picture(results.churn_curves(found), OVER_TIME),
    )


def _look_back(source: str, since: str, nodes: str, policies: list[str], patience: str) -> _Answer:
    history = history_of(source, since)
    trace = history.trace
    check_published(policies, trace, HostChoice.POLICY)
    if nodes:
        trace = replace(trace, nodes=nodes_of(nodes))
    stays, window = as_it_was(trace.pods, history.length_s, patience_s=_patience_s(patience))
    load, churned = runs.as_it_was(trace, policies, stays, window)
    found = {load / 100: churned}
    return _Answer(
        results.churn_tables(trace, [], found),
        results.sentences(history, churned),
        results.churn_json(trace, [], found) | results.history_json(history),
        picture(results.churn_curves(found), OVER_TIME),
    )


def _patience_s(text: str) -> float:
    return seconds_of(text, "--patience") if text else float("inf")


def _show(answer: _Answer, output: Output, svg: Path | None) -> None:
    if svg is not None:
        _write(svg, answer.picture)
    if output is Output.JSON:
        console.print_json(data=answer.as_json)
        return
    for each in answer.tables:
        console.print(table(*each))
    for sentence in answer.sentences:
        console.print(sentence, highlight=False, markup=False)


def _check_writable(path: Path) -> None:
    """Try to write before runs that may take hours; leave nothing behind."""
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
