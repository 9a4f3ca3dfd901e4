"""The values of admission: rules, what is known of the cluster, one review's own, and the answer.

`mutation.mutate` makes an `AdmissionResult` of them, which the webhook and `hamictl lint` report.
Nothing of the cluster is needed: what is unknown refuses no pod, and the audit annotations name it.
The webhook keeps it from the bus (`hami_webhook.cluster_feed`), `hamictl lint` from a dump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hamicommon.admission.idle_cards import IdleCards, vendors_of
from hamicommon.admission.patches import Operation
from hamicommon.admission.quota import NamespaceQuotas
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.clipping import clip
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

OK = 200
BAD_REQUEST = 400
FORBIDDEN = 403
_MAX_CHARACTERS = 1024
"""Characters of a refusal; our own are shorter."""
UNPROCESSABLE = 422
"""For amounts that can never be given, and annotations that can't be read. HAMi answers 500 to the
first, which blames the server."""

Reason = Literal[
    "asks-for-cards",
    "no-cards",
    "other-scheduler",
    "mirror-pod",
    "not-judged",
    "quota",
    "queued-job",
    "no-pod",
    "no-containers",
    "malformed-amount",
    "malformed-annotation",
    "privileged",
    "node-assigned",
    "tampering",
    "priority",
    "over-quota",
    "never-fits",
    "quota-mistake",
]
"""Why a verdict is as it is, for metrics and audit; the first seven admit."""

NeverFits = Literal["deny", "warn", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How this installation admits pods."""

    vendors: Vendors
    scheduler_name: str
    """Set on pods that ask for cards; empty: pods keep the scheduler that they have."""
    force_overwrite_default_scheduler: bool = True
    """Take over pods whose scheduler is the default one (which is what the API server fills in)."""
    never_fits: NeverFits = "warn"
    """Treatment of pods that no node could take if nothing were granted. A warning by default: an
    autoscaler makes a node for a pod that waits, not for one that was refused."""
    tampering: TamperingPolicy = field(default_factory=TamperingPolicy)
    """Treatment of pods that undo their slices."""
    claims: bool = False
    """Pods with `hami.io/front-end: dra` ask by a ResourceClaim in place of limits."""
    marks_slices: bool = False
    """Pods that ask for cards get the marker, by which autoscalers leave them to us (`marker`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Facts known of the cluster at one moment."""

    cards: IdleCards | None = None
    cards_unknown: str = "the cluster's cards are not known"
    """Why `cards` is None, for the audit annotation."""
    foreign_vendors: frozenset[str] = frozenset()
    """Vendors that have cards on nodes without our agent: those are in no inventory stream."""
    quotas: Mapping[str, NamespaceQuotas] | None = None
    """By namespace; one that is absent has none."""
    quotas_unknown: str = "the ledger's quota numbers are not known"
    """Why `quotas` is None, for the audit annotation."""

    def quotas_of(self, namespace: str) -> NamespaceQuotas:
        """Empty where it has none, or none is known."""
        return (self.quotas or {}).get(namespace, {})

    def cards_for(self, request: PodRequest) -> tuple[IdleCards | None, str]:
        """The cards on which the pod can be judged, or why it can't."""
        if self.cards is None:
            return None, self.cards_unknown
        foreign = sorted(vendors_of(request) & self.foreign_vendors)
        if foreign:
            return None, f"nodes without our agent have cards of {', '.join(foreign)}"
        missing = sorted(self.cards.vendors_without_cards(request))
        if missing:
            return None, f"no node has reported a card of {', '.join(missing)}"
        return self.cards, ""


NOTHING_KNOWN = Knowledge()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResult:
    """The answer: fields of an AdmissionResponse."""

    allowed: bool
    reason: Reason = "no-cards"
    code: int = OK
    message: str = ""
    patch: list[Operation] = field(default_factory=list)
    """RFC 6902 operations; empty when the pod stays as it is."""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    """Audit annotations: whether cards and quotas were known, what was stripped."""


class AdmissionCircumstances(NamedTuple):
    """Circumstances that belong to one review and not to the pod."""

    namespace: str = ""
    """Namespace of the request; empty: the pod's own counts."""
    traceparent: str = ""
    """Stamped on a pod that asks for cards; empty: none is."""
    stamped: bool = False
    """The pod's own stamp is ours, from an earlier look at the same pod: it stays."""
    username: str = ""
    """Name of the user who creates the pod; stamped like the trace. Empty: unknown."""
    knowledge: Knowledge = NOTHING_KNOWN
    by_node: bool = False
    """A kubelet asks, as itself."""
    before: Json | None = None
    """The pod as it was, where ephemeral containers are added to it; None: it is being created."""


ANY = AdmissionCircumstances()


def denied(
    message: str,
    reason: Reason,
    *,
    code: int = FORBIDDEN,
    audit: Mapping[str, str] | None = None,
) -> AdmissionResult:
    """A refusal, with what was known for the audit."""
    shown = clip(message, _MAX_CHARACTERS)
    return AdmissionResult(
        allowed=False, reason=reason, code=code, message=shown, audit=audit or {}
    )
