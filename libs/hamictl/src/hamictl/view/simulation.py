"""The simulator's answer to one pod, as a table and as plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.simulation.cluster import Cluster
from hamicommon.simulation.planner import Planned
from rich.table import Table

from hamictl.view.tables import cores, table


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
        f"{container.name}: {share.uuid} {share.memory_mib} MiB {cores(share.core_percent)}"
        for container in containers
        for share in container.shares
    ]
    return "\n".join(lines)


def as_text(answer: Planned) -> Iterator[str]:
    """What the table means, for somebody who has never seen one."""
    verdict, name = answer.verdict, f"{answer.namespace}/{answer.name}"
    yield from (f"warning: {warning}" for warning in answer.warnings)
    if verdict.error:
        yield f"{name} can't be placed anywhere: {verdict.error}."
    elif verdict.unfiltered or verdict.chosen is not None:
        where = f" would go to {verdict.chosen}" if verdict.chosen else ""
        yield f"{name}{where}: {answer.summary}."
    else:
        yield f"{name} fits nowhere: {answer.summary}."
        yield from (f"  {change}" for change in answer.changes)
    yield ""
