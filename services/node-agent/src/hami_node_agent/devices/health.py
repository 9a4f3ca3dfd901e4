"""Decide when a card becomes unhealthy and healthy again (protocol 5.5).

Input: facts from NVML (an XID event, a failed or good probe) and `now`. Output: the card's new
`Health`. Unknown is unhealthy. A card that is certainly bad is unhealthy immediately; one that only
did not answer, after `BAD_PROBES` tries in a row. Either is healthy after `GOOD_PROBES` good ones.
A card that reported a critical XID also needs `quiet_s` without another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from hamicommon.domain.ids import GpuUuid

IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that are errors of the application, not of the card (NVIDIA's XID catalogue).

Graphics exceptions, page faults, preempted contexts, video processor exceptions, context switch
time-outs.
"""

# HAMi#2200: one good probe between two bad ones is a flapping card, three in a row are not.
GOOD_PROBES = 3
# A driver that is busy resetting another card is late once; HAMi takes every card off for that.
BAD_PROBES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """XID events that make a card unhealthy."""

    all_disabled: bool = False
    ignored: frozenset[int] = IGNORED_XIDS
    enabled: frozenset[int] = frozenset()
    all_enabled: bool = False

    def matters(self, xid: int) -> bool:
        """Return whether this XID makes its card unhealthy.

        Enabling takes precedence over ignoring.
        """
        if self.all_enabled or xid in self.enabled:
            return True
        return not self.all_disabled and xid not in self.ignored

    @property
    def any_matters(self) -> bool:
        """Return whether any event can matter, so that events must be read."""
        return self.all_enabled or bool(self.enabled) or not self.all_disabled


def xid_policy(entries: Iterable[str]) -> XidPolicy:
    """Parse the setting `health_checks`.

    `xids` means all, as in HAMi, unknown parts are ignored.
    """
    given = {entry.lower() for entry in entries}
    disabled = {entry[1:] for entry in given if entry.startswith("-")}
    enabled = given - {f"-{entry}" for entry in disabled}
    return XidPolicy(
        all_disabled=bool(disabled & {"all", "xids"}),
        ignored=IGNORED_XIDS | _numbers(disabled),
        enabled=_numbers(enabled),
        all_enabled=bool(enabled & {"all", "xids"}),
    )


def _numbers(entries: set[str]) -> frozenset[int]:
    return frozenset(int(entry) for entry in entries if entry.isascii() and entry.isdigit())


class HealthCause(StrEnum):
    """Reason of a change of health."""

    XID = "xid"
    """The driver reported an error of the card itself."""
    FAILED = "failed"
    """The driver reported the card as bad or lost, or its events can't be watched."""
    UNANSWERED = "unanswered"
    """The card did not answer several probes in a row."""
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health of a card; `reason` is empty if it is healthy."""

    healthy: bool = True
    reason: str = ""
    good_probes: int = GOOD_PROBES
    bad_probes: int = 0
    """Number of unanswered probes in a row while the card still counts as healthy."""
    quiet_until: float = 0.0
    """Monotonic time before which an XID keeps the card unhealthy."""


def after_xid(health: Health, xid: int, *, now: float, quiet_s: float) -> Health:
    """Return the health after a critical error of the card."""
    return replace(health, healthy=False, reason=f"XID {xid}", quiet_until=now + quiet_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason of a failed probe."""

    reason: str
    certain: bool
    """Whether the card is certainly bad; false: it only did not answer."""


def after_bad_probe(health: Health, failure: Failure) -> Health:
    """Return the health after a failed probe."""
    bad = health.bad_probes + 1
    if health.healthy and not failure.certain and bad < BAD_PROBES:
        return replace(health, bad_probes=bad)
    return replace(health, healthy=False, reason=failure.reason, good_probes=0, bad_probes=0)


def after_good_probe(health: Health, *, now: float) -> Health:
    """Return the health after a successful probe."""
    if health.healthy:
        return Health()
    good = min(health.good_probes + 1, GOOD_PROBES)
    if good < GOOD_PROBES or now < health.quiet_until:
        return replace(health, good_probes=good)
    return Health()


class CardHealth:
    """Health of several cards over time; `on_change` is called with each change and its cause."""

    def __init__(
        self,
        xids: XidPolicy,
        *,
        quiet_s: float,
        on_change: Callable[[GpuUuid, Health, Health, HealthCause], None],
    ) -> None:
        """`quiet_s`: time after its last XID until a card may be healthy again."""
        self.xids = xids
        self.of: dict[GpuUuid, Health] = {}
        self._quiet_s = quiet_s
        self._on_change = on_change

    def after_probe(self, failing: Mapping[GpuUuid, Failure], *, now: float) -> None:
        """Apply a probe of all cards."""
        for card, health in list(self.of.items()):
            failure = failing.get(card)
            if failure is None:
                self._set(card, after_good_probe(health, now=now), HealthCause.RECOVERED)
            else:
                cause = HealthCause.FAILED if failure.certain else HealthCause.UNANSWERED
                self._set(card, after_bad_probe(health, failure), cause)

    def after_xid(self, card: GpuUuid | None, xid: int, *, now: float) -> bool:
        """Apply an XID event; return False if it does not count.

        One that names no card of these may be any card's.
        """
        if not self.xids.matters(xid):
            return False
        for one in [card] if card in self.of else list(self.of):
            sick = after_xid(self.of[one], xid, now=now, quiet_s=self._quiet_s)
            self._set(one, sick, HealthCause.XID)
        return True

    def _set(self, card: GpuUuid, health: Health, cause: HealthCause) -> None:
        before, self.of[card] = self.of[card], health
        if (before.healthy, before.reason) != (health.healthy, health.reason):
            self._on_change(card, before, health, cause)
