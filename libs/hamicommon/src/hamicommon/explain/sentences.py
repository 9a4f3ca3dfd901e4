"""Write decisions as sentences that need no knowledge of the scheduler.

Rules, amounts and requests, and one sentence for a decision: what is missing, and what would help.
It is the pod's event and explain's first sentence, computed after every refusal, outside the path
of the answer, from the arrays of the refusal; facts only. Changes that would really have fitted are
computed when the explanation is read (`counterfactuals.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.explain.record import QuotaShort
from hamicommon.placement.node_policies import FRAGMENTATION
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.rules import Rule
from hamicommon.placement.unschedulable import Shortfall, ShortfallTable


def cards(count: int) -> str:
    """Return `1 card` or `2 cards`."""
    return count_noun(count, "card")


def count_noun(count: int, noun: str) -> str:
    """Return a count with its noun: `1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortfall(short: Shortfall, device: GpuDevice | None) -> str:
    """Explain why one card can't take the slice, with the amounts."""
    rule = short.rule
    if rule is Rule.MEMORY:
        return f"{short.available} MiB free, {short.requested} MiB wanted"
    if rule is Rule.CORES:
        return f"{short.available} % of its cores free, {short.requested} % wanted"
    if rule is Rule.TYPE and device is not None:
        return f"of type {device.type}"
    if rule is Rule.NOT_HEALTHY and device is not None and device.health_reason:
        return f"unhealthy: {device.health_reason}"
    if rule is Rule.SLOTS and device is not None:
        return "its only slot taken" if device.slots == 1 else f"all {device.slots} slots taken"
    return rule.row.group


def describe_request(request: DeviceRequest) -> str:
    """Describe one container's request: `1 NVIDIA card with 4096 MiB and 30 % of its cores`."""
    parts = []
    if request.memory_mib:
        parts.append(f"{request.memory_mib} MiB")
    elif request.memory_percent == 100:
        parts.append("all of its memory")
    elif request.memory_percent is not None:
        parts.append(f"{request.memory_percent} % of its memory")
    if request.core_percent:
        # More than a card has is taken as all of it.
        parts.append(f"{min(request.core_percent, 100)} % of its cores")
    many = f"{request.count} {request.vendor} card" + ("s" if request.count != 1 else "")
    each = " each" if request.count != 1 and parts else ""
    return many + (f" with {' and '.join(parts)}{each}" if parts else "")


def asked_by(request: PodRequest) -> list[str]:
    """Describe the requests of all containers that have one."""
    several = sum(bool(container.requests) for container in request.containers) > 1
    return [
        (f"{container.name}: " if several else "") + describe_request(wanted)
        for container in request.containers
        for wanted in container.requests
    ]


def selection(chosen: Selection) -> list[tuple[str, str]]:
    """Return field and phrase for each restriction of the pod's annotations."""
    found = []
    for field, phrase in (
        ("use_types", "the wanted card types"),
        ("avoid_types", "the unwanted card types"),
        ("use_uuids", "the wanted card uuids"),
        ("avoid_uuids", "the unwanted card uuids"),
    ):
        values: Sequence[str] = getattr(chosen, field)
        if values:
            found.append((field, f"{phrase} ({list_values(values)})"))
    if chosen.mode:
        found.append(("mode", f"the wanted card mode ({chosen.mode})"))
    if chosen.numa_bind:
        found.append(("numa_bind", "numa-bind"))
    return found


def list_values(values: Iterable[str], most: int = 3) -> str:
    """List the first few values, and the number of further ones."""
    every = list(dict.fromkeys(values))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


class CardStock(NamedTuple):
    """Cards of a cluster by vendor; changes only when nodes come and go."""

    largest_mib: Mapping[str, int]
    types: Mapping[str, Sequence[str]]
    """Sorted product names by vendor."""


def stock_of(devices: Iterable[GpuDevice]) -> CardStock:
    """Count the cards of all nodes."""
    largest: dict[str, int] = {}
    types: dict[str, set[str]] = {}
    for device in devices:
        largest[device.vendor] = max(device.memory_mib, largest.get(device.vendor, 0))
        types.setdefault(device.vendor, set()).add(device.type)
    return CardStock(largest, {vendor: sorted(names) for vendor, names in types.items()})


def quota_sentence(quota: QuotaShort) -> str:
    """Explain why a namespace's quota refuses a pod."""
    left, limit, wanted = map(quota.in_units, (quota.left, quota.limit, quota.wanted))
    return (
        f"namespace {quota.namespace} has {left} of its quota of {limit} limits."
        f"{quota.resource} left and the pod wants {wanted}: {quota.with_unit(quota.short)} short; "
        "ask for less, end another pod of the namespace, or raise the quota"
    )


def refusal_sentence(
    request: PodRequest,
    tables: Sequence[ShortfallTable],
    stock: CardStock,
    *,
    candidates: int,
) -> str:
    """Explain why no card can take a pod."""
    table = max(tables, key=lambda one: len(one.nodes), default=None)
    vendors = [w.vendor for c in request.containers for w in c.requests]
    where = count_noun(candidates, "node")
    if table is None:
        return (
            f"none of the {where} has a card of {list_values(vendors)}; is a device plugin missing?"
        )
    wanted = _request_of(request, table)
    seen = Counter(table.codes[table.codes != Rule.NO_CARD].tolist())
    total, fitting = sum(seen.values()), seen.pop(int(Rule.FITS), 0)
    if not total:
        return f"none of the {where} has a card of {table.vendor}; is a device plugin missing?"
    per_node = (table.codes != Rule.NO_CARD).sum(axis=1)
    most = int(per_node.max())
    if most < wanted.count and not any(each.reuses_card for each in table.limits.values()):
        return (
            f"no node has {cards(wanted.count)} of {table.vendor}: the largest has {most}; "
            "ask for fewer cards"
        )
    nodes = count_noun(int((per_node > 0).sum()), "node")
    on, on_cards = f"{total} on {nodes}", f"{cards(total)} on {nodes}"
    rules = {Rule(code): count for code, count in seen.items()}
    first = max(rules, key=lambda rule: (rules[rule], rule), default=None)
    if first is None or fitting:
        best = int(table.fitting.argmax())
        limit = table.limits.get(best)
        one_by_one = int((table.codes[best] == Rule.FITS).sum())
        why = _groups(rules)
        return (
            f"no node has {cards(wanted.count)} that fit{f' {limit.text}' if limit else ''}: "
            f"the best has {int(table.fitting[best])}"
            + (f" of {one_by_one} that fit" if limit and one_by_one > limit.fitting else "")
            + (f" ({why} of {on_cards})" if why else "")
            + "; ask for fewer cards, or wait until a pod ends"
        )
    others = _groups({rule: count for rule, count in rules.items() if rule is not first})
    none = f"none of {on_cards}" if others else f"no card of {on}"
    text = _of_rule(first, table, request, stock, none)
    return text.replace("; ", f" (and {others}); ", 1) if others else text


def _request_of(request: PodRequest, table: ShortfallTable) -> DeviceRequest:
    for container in request.containers:
        for wanted in container.requests:
            if (container.name, wanted.vendor) == (table.container, table.vendor):
                return wanted
    return next(w for c in request.containers for w in c.requests)


def _groups(rules: Mapping[Rule, int]) -> str:
    ordered = sorted(rules.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {rule.row.group}" for rule, count in ordered)


def _of_rule(
    rule: Rule,
    table: ShortfallTable,
    request: PodRequest,
    stock: CardStock,
    none: str,
) -> str:
    here = table.codes == rule
    free, asked = int(table.available[here].max()), int(table.requested[here].max())
    if rule is Rule.MEMORY:
        largest = stock.largest_mib.get(table.vendor, 0)
        if asked > largest > 0:
            return f"{none} has {asked} MiB: the largest has {largest} MiB; ask for less"
        return f"{none} has {asked} MiB free: the most free is {max(free, 0)} MiB; {rule.row.help}"
    if rule is Rule.CORES:
        return (
            f"{none} has {asked} % of its cores free: the most free is {max(free, 0)} %; "
            f"{rule.row.help}"
        )
    if rule is Rule.TYPE:
        types = list_values(stock.types.get(table.vendor, ()))
        chosen = request.selections.get(table.vendor)
        asked_for = (
            list_values(phrase for _, phrase in selection(chosen)) if chosen else "the selection"
        )
        return f"{none} suits {asked_for}: they are {types}; {rule.row.help}"
    return f"{none} can take it: {int(np.count_nonzero(here))} {rule.row.group}; {rule.row.help}"


def placed_sentence(
    request: PodRequest, node: NodeName, scores: NodeScores, *, candidates: int
) -> str:
    """Explain why a pod got its node; without scores it kept slices that it already had."""
    fitting = len(scores)
    if not scores:
        return f"it keeps the slices that it holds on {node}"
    if request.policy.node == FRAGMENTATION and not scores.all_equal:
        return (
            f"{fitting} of {count_noun(candidates, 'node')} fit, and "
            f"{_less_stranded(node, scores)} (node policy fragmentation)"
        )
    liking = "fullest" if request.policy.node != "spread" else "emptiest"
    if fitting == 1:
        return f"{node} is the only one of {count_noun(candidates, 'node')} that fits"
    if scores.all_equal:
        return (
            f"{fitting} of {count_noun(candidates, 'node')} fit equally well, and {node} is "
            "the first by name"
        )
    return (
        f"{fitting} of {count_noun(candidates, 'node')} fit, and {node} is the {liking} of them "
        f"(node policy {request.policy.node})"
    )


def _less_stranded(node: NodeName, scores: NodeScores) -> str:
    """Compare nodes under `fragmentation`, whose scores are minus the stranded thousandths."""
    best = scores.best(len(scores))
    first = best[0][1]
    others = [score for _, score in best if score < first]
    equal = len(best) - len(others)
    less = f"{first - others[0]:.0f} milli of a card less than on the next"
    if equal > 1:
        return f"on {node} and {equal - 1} more of them the pod strands {less}"
    return f"on {node} the pod strands {less}"
