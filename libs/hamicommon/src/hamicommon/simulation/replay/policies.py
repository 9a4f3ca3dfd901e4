"""The policies that a replay knows, by the names they have on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hamicommon.clipping import clip
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.placement.choice.ordering import FRAGMENTATION
from hamicommon.simulation.replay.hosts import (
    HostChoice,
    ReplayCluster,
    ScoredHosts,
    StockHosts,
)
from hamicommon.simulation.replay.placers import EnginePlacer, oracle
from hamicommon.simulation.replay.references import BestFit, Fgd
from hamicommon.simulation.replay.trace import Trace, TraceNode

ENGINE = {
    "binpack": Policy(node="binpack", gpu=("spread",)),
    "spread": Policy(node="spread", gpu=("spread",)),
    "binpack-cards": Policy(node="binpack", gpu=("binpack",)),
    FRAGMENTATION: Policy(node=FRAGMENTATION, gpu=(FRAGMENTATION,)),
}
"""What pods can ask for: `binpack` and `spread` with the card policy `spread`, HAMi's defaults."""

ORACLE = "fragmentation-oracle"
"""As `fragmentation`, but the trace's mix is known beforehand and never learned."""
CARDS_ONLY = "fragmentation-cards"
"""As `fragmentation`, without the hosts' CPU in the score."""

REFERENCES: dict[str, type[BestFit] | type[Fgd]] = {"bestfit": BestFit, "fgd": Fgd}

NAMES = (*ENGINE, ORACLE, CARDS_ONLY, *REFERENCES)


def checked(names: str) -> list[str]:
    """A comma list of policies, each once.

    Raises: InvalidRequest naming the one that is unknown, and those there are.
    """
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in NAMES:
            raise InvalidRequest(
                f"policy {clip(name)!r} is unknown: {', '.join(NAMES)}, or a comma list is wanted"
            )
    if not found:
        raise InvalidRequest(f"no policy is named: a comma list of {', '.join(NAMES)} is wanted")
    return list(dict.fromkeys(found))


def check_references(names: Iterable[str], trace: Trace, hosts: HostChoice) -> None:
    """Before the first of many runs.

    Raises: InvalidRequest when one of them can't count what the trace's pods ask for, or has no
    scores for pods without cards where those are wanted.
    """
    for name in names:
        if name in REFERENCES:
            REFERENCES[name].check(trace)
            if hosts is HostChoice.EXTENDER:
                raise InvalidRequest(
                    f"policy {name} has no scores for pods without cards: with extender, policies "
                    f"of the engine are wanted: {', '.join((*ENGINE, ORACLE, CARDS_ONLY))}"
                )


def engine_placer(name: str, trace: Trace, nodes: Sequence[TraceNode]) -> EnginePlacer:
    """The cluster under a policy of the engine.

    Raises: InvalidRequest when it is none of the engine's.
    """
    if name == ORACLE:
        return EnginePlacer(trace, nodes, ENGINE[FRAGMENTATION], mix=oracle(trace))
    if name == CARDS_ONLY:
        return EnginePlacer(trace, nodes, ENGINE[FRAGMENTATION], host_in_score=False)
    if name not in ENGINE:
        raise InvalidRequest(f"policy {name} is no policy of the engine: {', '.join(ENGINE)}")
    return EnginePlacer(trace, nodes, ENGINE[name])


def placer(
    name: str,
    trace: Trace,
    nodes: Sequence[TraceNode],
    hosts: HostChoice = HostChoice.POLICY,
) -> ReplayCluster:
    """The cluster under any of the policies; `hosts` places pods without cards.

    Raises: InvalidRequest when a reference can't count what the trace's pods ask for, or is to
    score hosts.
    """
    if hosts is HostChoice.EXTENDER:
        return ScoredHosts(engine_placer(name, trace, nodes), nodes)
    reference = REFERENCES.get(name)
    cluster = reference(trace, nodes) if reference else engine_placer(name, trace, nodes)
    return cluster if hosts is HostChoice.POLICY else StockHosts(cluster, nodes, hosts)
