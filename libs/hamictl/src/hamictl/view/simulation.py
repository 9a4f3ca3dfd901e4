"""The simulator's answer to one pod, as a table and in plain words. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.placement.refusal import Shortfall
from hamicommon.placement.rules import NODE_INSUFFICIENT, NODE_UNREGISTERED, Rule
from hamicommon.simulation.cluster import Cluster
from hamicommon.simulation.planning import Planned
from hamicommon.simulation.verdict import NodeVerdict
from rich.table import Table

from hamictl.view.tables import table

# More refused nodes than this are counted instead of explained one by one.
_NODES_EXPLAINED = 10

_WHY = {
    Rule.NOT_HEALTHY: "reported as not healthy",
    Rule.CORDONED: "closed for new slices (hami.io/device-cordon)",
    Rule.TYPE: "not of the type or mode that the pod's annotations ask for",
    Rule.UUID: "ruled out by the pod's uuid annotations",
    Rule.SLOTS: "shared by as many containers as allowed",
    Rule.MUTEX: "in use, and the pod wants unused cards (mutex)",
    Rule.EXCLUSIVE: "in use, and the pod wants all of a card's cores",
    Rule.CORES_EXHAUSTED: "without a core left",
}


def verdict_table(answer: Planned, cluster: Cluster) -> Table:
    """One row per node: fits with which cards, or refused with HAMi's reason."""
    verdict = answer.verdict
    rows = []
    for name in cluster.nodes:
        node = verdict.nodes[name]
        mark = "chosen" if name == verdict.chosen else "fits" if node.fits else "refused"
        text = _cards(node.containers) if node.fits else node.reason
        rows.append((str(name), mark, text or "-"))
    return table(f"{answer.namespace}/{answer.name}", ("NODE", "ANSWER", "CARDS OR REASON"), rows)


def _cards(containers: Sequence[ContainerGrant]) -> str:
    lines = [
        f"{container.name}: {share.uuid} {share.memory_mib} MiB {share.core_percent} % cores"
        for container in containers
        for share in container.shares
    ]
    return "\n".join(lines)


def in_words(answer: Planned) -> Iterator[str]:
    """What the table means, for somebody who has never seen one."""
    verdict, name = answer.verdict, f"{answer.namespace}/{answer.name}"
    yield from (f"  warning: {warning}" for warning in answer.warnings)
    if verdict.error:
        yield f"{name} can't be placed anywhere: {verdict.error}."
    elif verdict.unfiltered:
        yield f"{name} asks for no card, so kube-scheduler alone decides."
    elif verdict.chosen is not None:
        fit = sum(node.fits for node in verdict.nodes.values())
        of = len(verdict.nodes)
        yield f"{name} would go to {verdict.chosen}; it fits on {fit} of {of} nodes."
    elif not verdict.nodes:
        yield f"{name} fits nowhere: the cluster has no node."
    else:
        yield f"{name} fits nowhere:"
        refused = [(node, said) for node, said in verdict.nodes.items() if not said.fits]
        for node, said in refused[:_NODES_EXPLAINED]:
            yield f"  {node}: {_why(said)}."
        if len(refused) > _NODES_EXPLAINED:
            yield f"  and {len(refused) - _NODES_EXPLAINED} more nodes."
    yield ""


def _why(node: NodeVerdict) -> str:
    if node.reason == NODE_UNREGISTERED:
        return "it tells of no card, or its device plugin is away"
    if node.reason == NODE_INSUFFICIENT:
        return "it has fewer cards of this kind than one container asks for"
    groups: dict[Rule, list[Shortfall]] = defaultdict(list)
    for shortfall in node.shortfalls:
        groups[shortfall.rule].append(shortfall)
    pieces = [_of_rule(rule, groups[rule]) for rule in sorted(groups)]
    return ", ".join(pieces) if pieces else node.reason


def _of_rule(rule: Rule, cards: Sequence[Shortfall]) -> str:
    count = f"{len(cards)} card{'s' if len(cards) > 1 else ''}"
    wanted, best = max(card.requested for card in cards), max(card.available for card in cards)
    if rule is Rule.MEMORY:
        return f"{count} with too little memory ({wanted} MiB wanted, at most {best} MiB free)"
    if rule is Rule.CORES:
        return f"{count} with too few cores ({wanted} % wanted, at most {best} % free)"
    return f"{count} {_WHY.get(rule, cards[0].reason)}"
