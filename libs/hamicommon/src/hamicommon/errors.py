"""The one error tree; routes and servicers map it to HTTP and gRPC codes in one table each.

* HamiError
  + InvalidRequest      the caller's mistake: the field, the value and what would be right
  + NotFound            the named pod, node, card or allocation does not exist
  + Conflict            lost a race or met a state that forbids the step; look again and retry
    - CapacityConflict  a card (or quota) could no longer hold the grant; carries which one
      . QuotaConflict   it was a namespace's quota; carries the amounts
  + Unschedulable       nothing fits; carries the reason for every node
  + Unavailable         Postgres, Redis, NATS or the API server is unavailable or too slow; retry
  later
    - Forbidden         the API server refuses who we are, or a policy refuses the change
"""

from __future__ import annotations

from collections.abc import Mapping


class HamiError(Exception):
    """Base of all errors that we raise on purpose; `str(error)` is fit for a user."""


class InvalidRequest(HamiError):
    """Error of the caller, in one sentence: the field, the value, and what would be right."""


class NotFound(HamiError):
    """The named object does not exist, or no longer."""


class Conflict(HamiError):
    """A concurrent change won, or the present state forbids the step."""


class CapacityConflict(Conflict):
    """The card or quota can no longer hold the grant: a guarded UPDATE matched no row.

    `subject` is the device uuid (or `quota/<namespace>/<resource>`) that refused.
    """

    def __init__(self, subject: str, message: str) -> None:
        super().__init__(message)
        self.subject = subject


class QuotaConflict(CapacityConflict):
    """The namespace's quota can't hold the grant; amounts are in the resource's own unit."""

    def __init__(
        self, namespace: str, resource: str, *, limit: int, used: int, wanted: int
    ) -> None:
        super().__init__(
            f"quota/{namespace}/{resource}",
            f"namespace {namespace} has {max(0, limit - used)} of {limit} {resource} left by its "
            f"quota; expected {wanted}",
        )
        self.namespace = namespace
        self.resource = resource
        self.limit = limit
        self.used = used
        self.wanted = wanted


class Unschedulable(HamiError):
    """No node fits; `reasons` maps each refused node to its reason string."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(f"no available node, {len(reasons)} nodes do not meet")
        self.reasons = dict(reasons)


class Unavailable(HamiError):
    """A backend is unavailable or too slow: nothing was changed, or the result is unknown."""


class Forbidden(Unavailable):
    """The backend answered 401 or 403; nothing was changed.

    To be retried like any backend that is unavailable: tokens are rotated, roles are repaired,
    and an API server that has just started refuses everybody until it has read its roles.
    """
