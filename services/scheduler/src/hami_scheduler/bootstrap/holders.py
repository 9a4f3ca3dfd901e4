"""Grants of pods that are on their nodes already, and of those that hold a claim together."""

from __future__ import annotations

from hami_scheduler.adoption.claim_holders import ClaimHolders
from hami_scheduler.adoption.claims_at_bind import ClaimsAtBind
from hami_scheduler.adoption.resource_claims import ClaimGrants
from hami_scheduler.adoption.running_pods import RunningPods
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.extender.bind import BINDING_EXTRA_S


def running_pods(core: Core, connections: Connections) -> RunningPods:
    """Enters grants of pods on their nodes."""
    return RunningPods(
        store=connections.store,
        pods=connections.pods,
        view=core.state,
        vendors=core.vendors,
        announcer=core.announcer,
        instruments=core.instruments,
        label_keys=core.settings.kept_labels,
    )


def claim_grants(core: Core, connections: Connections) -> ClaimGrants:
    """Grants what is allocated to pods' claims."""
    return ClaimGrants(
        running_pods(core, connections),
        claims=connections.claims,
        request_of=core.requests.of,
    )


def claims_at_bind(core: Core, connections: Connections) -> ClaimsAtBind:
    """Grants of ResourceClaims of pods that are being bound."""
    return ClaimsAtBind(
        claim_grants(core, connections),
        pods=connections.pods,
        claims=connections.claims,
        lease_s=core.settings.bind_timeout_s + BINDING_EXTRA_S,
    )


def claim_holders(core: Core, connections: Connections) -> ClaimHolders:
    """Has each holder of a claim in the ledger before another one's grant ends."""
    holders = ClaimHolders(
        grants=claim_grants(core, connections),
        claims=connections.claims,
        store=connections.store,
        announcer=connections.grants,
        bulkhead=core.instruments.bulkhead,
    )
    core.transitions.before_end = holders.before_end
    return holders
