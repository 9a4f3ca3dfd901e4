"""Data types of admission: rules, knowledge of the cluster, circumstances of a review, the answer.

`mutation.mutate` makes an `AdmissionResult` of them, which the webhook and `hamictl lint` report.
Knowledge of the cluster is optional: an unknown part refuses no pod, and the audit annotations name
it. The webhook gets it from the bus (`hami_webhook.cluster_feed`), `hamictl lint` from a dump.
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
"""Maximum characters of a refusal."""
UNPROCESSABLE = 422
"""Status of a refusal for impossible amounts or unreadable annotations.

HAMi answers 500 to the first, which blames the server.
"""

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
"""Code of a verdict's reason, for metrics and audit; the first seven admit the pod."""

NeverFits = Literal["deny", "warn", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How this installation admits pods."""

    vendors: Vendors
    scheduler_name: str
    """Scheduler that is set on pods that ask for cards; empty: pods keep their own."""
    force_overwrite_default_scheduler: bool = True
    """Whether to replace the default scheduler's name, which the API server fills in."""
    never_fits: NeverFits = "warn"
    """Treatment of pods that could not run even if all cards were idle.

    A warning by default: an autoscaler makes a node for a pod that waits, not for one that was
    refused.
    """
    tampering: TamperingPolicy = field(default_factory=TamperingPolicy)
    """Treatment of pods that bypass their limits."""
    claims: bool = False
    """Whether pods with `hami.io/front-end: dra` get a ResourceClaim in place of limits."""
    marks_slices: bool = False
    """Whether pods that ask for cards get the marker, which makes autoscalers ignore them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Cluster's cards and quotas as known at one moment."""

    cards: IdleCards | None = None
    cards_unknown: str = "the cluster's cards are not known"
    """Reason why `cards` is None, for the audit annotation."""
    foreign_vendors: frozenset[str] = frozenset()
    """Vendors with cards on nodes without our agent, so that their cards are in no inventory."""
    quotas: Mapping[str, NamespaceQuotas] | None = None
    """Quotas by namespace; a namespace without an entry has none."""
    quotas_unknown: str = "the ledger's quota numbers are not known"
    """Reason why `quotas` is None, for the audit annotation."""

    def quotas_of(self, namespace: str) -> NamespaceQuotas:
        """Return a namespace's quotas; empty if it has none, or if they are unknown."""
        return (self.quotas or {}).get(namespace, {})

    def cards_for(self, request: PodRequest) -> tuple[IdleCards | None, str]:
        """Return the cards on which the pod can be judged, or why it can't be judged."""
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
    """Answer to an AdmissionReview, in the fields of an AdmissionResponse."""

    allowed: bool
    reason: Reason = "no-cards"
    code: int = OK
    message: str = ""
    patch: list[Operation] = field(default_factory=list)
    """RFC 6902 operations; empty when the pod stays as it is."""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    """Audit annotations: whether cards and quotas were known, and the stripped parts."""


class AdmissionCircumstances(NamedTuple):
    """Facts about one review that are not part of the pod."""

    namespace: str = ""
    """Namespace of the request; empty: take the pod's."""
    traceparent: str = ""
    """Trace context that is written on a pod that asks for cards; empty: none."""
    stamped: bool = False
    """Whether the pod's stamp is kept, because this webhook wrote it in an earlier review."""
    username: str = ""
    """User who creates the pod, written on it like the trace context; empty: unknown."""
    knowledge: Knowledge = NOTHING_KNOWN
    by_node: bool = False
    """Whether a kubelet made the request, under its own name."""
    before: Json | None = None
    """Pod before ephemeral containers are added to it; None: the pod is being created."""


ANY = AdmissionCircumstances()


def deny(
    message: str,
    reason: Reason,
    *,
    code: int = FORBIDDEN,
    audit: Mapping[str, str] | None = None,
) -> AdmissionResult:
    """Return a refusal, with audit annotations."""
    shown = clip(message, _MAX_CHARACTERS)
    return AdmissionResult(
        allowed=False, reason=reason, code=code, message=shown, audit=audit or {}
    )
