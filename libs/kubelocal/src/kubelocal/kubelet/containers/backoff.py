"""When a container starts again, and how long it waits: the kubelet's crash-loop back-off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffRule:
    """The kubelet's figures, in seconds; tests use smaller ones."""

    initial_s: float = 10.0
    longest_s: float = 300.0

    @property
    def forget_after_s(self) -> float:
        """A container that ran this long starts again without waiting."""
        return 2 * self.longest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBackoff:
    """State of one container's restarts: the wait that its next end brings."""

    wait_s: float = 0.0
    ended_at_s: float | None = None

    def after_end(self, rule: BackoffRule, *, ran_s: float, ended_at_s: float) -> RestartBackoff:
        """The container has ended: the first restart is at once, then the wait doubles."""
        if self.ended_at_s is None or ran_s > rule.forget_after_s:
            return RestartBackoff(wait_s=0.0, ended_at_s=ended_at_s)
        wait_s = max(rule.initial_s, min(self.wait_s * 2, rule.longest_s))
        return RestartBackoff(wait_s=min(wait_s, rule.longest_s), ended_at_s=ended_at_s)

    def restart_at_s(self) -> float:
        """When the container may start."""
        return (self.ended_at_s or 0.0) + self.wait_s


def restarts(restart_policy: str, *, exit_code: int, sidecar: bool, init: bool) -> bool:
    """Whether a container that has ended is started again."""
    if sidecar:
        return True
    if exit_code == 0:
        return restart_policy == "Always" and not init
    return restart_policy != "Never"
