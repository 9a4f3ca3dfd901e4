"""The lead of ResourceClaims, where it is switched on."""

from __future__ import annotations

from functools import partial

from hamicommon.k8s.pod_object import owner_of

from hami_scheduler.api.service import Loop
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.informers import Watches
from hami_scheduler.bootstrap.loops import periodic
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.dra.candidates import Candidates
from hami_scheduler.dra.claim_status import ClaimStatus
from hami_scheduler.dra.grants import ClaimGrants
from hami_scheduler.dra.lead import ClaimLead
from hami_scheduler.dra.placing import ClaimPlacing
from hami_scheduler.dra.turns import Turns
from hami_scheduler.ledger.reservations.early import EarlyReservations
from hami_scheduler.placement.reserve import Reservations

# A grant is given up by who holds it for its pod, before its row's deadline ends it.
LEASE_TIMES = 3.0


def claim_loops(
    core: Core, connections: Connections, watches: Watches, early: EarlyReservations
) -> tuple[tuple[str, Loop], ...]:
    """What allocates to claims; empty where kube-scheduler does."""
    if watches.claims is None:
        return ()
    hold_s = core.settings.reservation_s
    reservations = Reservations(
        view=core.view,
        store=connections.store,
        pods=connections.pods,
        requests=core.requests,
        reservation_s=LEASE_TIMES * hold_s,
        recorder=core.recorder,
        instruments=core.instruments,
        early=early,
        owner_of=partial(owner_of, label_keys=core.settings.kept_labels),
    )
    placing = ClaimPlacing(
        view=core.view,
        reservations=reservations,
        requests=core.requests,
        recorder=core.recorder,
        announcer=core.announcer,
        instruments=core.instruments,
        pods=connections.pods,
        silent=lambda: core.liveness.silent,
    )
    waiting = watches.claims.waiting
    lead = ClaimLead(
        waiting=waiting,
        candidates=Candidates(
            slices=watches.claims.slices.store, nodes=watches.node_informer.store
        ),
        synced=lambda: not watches.missing(),
        status=ClaimStatus(connections.claims, waiting),
        grants=ClaimGrants(connections.store, core.transitions),
        placing=placing,
        turns=Turns(hold_s),
        bulkhead=core.instruments.bulkhead,
    )
    core.requeuer.listeners.append(lead.freed)
    return (
        ("claims-watch", watches.claims.informer.run),
        ("slices-watch", watches.claims.slices.run),
        ("claim-lead", lead.run),
        periodic("claim-sweep", core.settings.reconcile_s, lead.sweep),
    )
