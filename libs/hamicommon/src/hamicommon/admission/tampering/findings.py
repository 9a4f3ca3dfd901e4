"""Findings in a pod, the sentences about them, and how an installation deals with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hamicommon.clipping import clip
from hamicommon.settings import HOST_FOLDERS, AdmissionSettings, TamperingMode

Kind = Literal["privileged", "host-namespace", "capability", "variable", "mount", "device"]

MAX_FINDINGS = 256
"""A pod in which more is found is refused, and never stripped of a part of it."""
MAX_SENTENCES = 3
"""Findings named in a refusal; a pod may have thousands of variables."""
TRUST = "HAMI_ADMISSION_TRUSTED_NAMESPACES"
PRIORITY = "HAMI_ADMISSION_PRIORITY_NAMESPACES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that undoes a slice, or takes what was not granted."""

    kind: Kind
    what: str
    """In short, for a node's reason: `variable LD_AUDIT of container main`."""
    sentence: str
    """The place, the value, what it does, and what would be right."""
    part: str = ""
    """The list in the pod's spec; empty: the pod itself."""
    index: int = 0
    """Index of the container in that list."""
    place: int = 0
    """Index of the entry in the container's list."""
    name: str = ""
    """Name of the capability or field."""
    instead: str | None = None
    """The value that a stripped variable gets; None: it is removed."""
    needs: Literal["trust", "priority"] = "trust"
    unknown: bool = False
    """Whether the namespace may is not known: warned of and no more."""

    @property
    def strippable(self) -> bool:
        """A privileged container would be another one without its privilege."""
        return self.kind != "privileged"


def refusal(findings: Sequence[Finding]) -> str:
    """The sentence for whom the pod is refused; `findings` is not empty."""
    shown = "; ".join(each.sentence for each in findings[:MAX_SENTENCES])
    more = len(findings) - MAX_SENTENCES
    needed = {each.needs for each in findings}
    permits = [name for kind, name in (("trust", TRUST), ("priority", PRIORITY)) if kind in needed]
    least = "at least " if len(findings) > MAX_FINDINGS else ""
    rest = f"; and {least}{more} more" if more > 0 else ""
    return f"{shown}{rest} (an operator permits it by {' and '.join(permits)})"


def in_short(findings: Sequence[Finding]) -> str:
    """For a node's reason, which goes over the wire once per node.

    Without a comma, which parts reasons.
    """
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return clip(findings[0].what, 128).replace(",", " ") + more


EVERY = "*"
"""In a list of namespaces: all of them."""


class NamespacePermits(NamedTuple):
    """Permissions of a pod's namespace."""

    trusted: bool = False
    """Nothing in its pods is judged."""
    priority: Literal["may", "may-not", "unknown"] = "may-not"
    """Whether its pods may go before others on their cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TamperingPolicy:
    """The installation's rules; hashable."""

    mode: TamperingMode = "refuse"
    trusted_namespaces: frozenset[str] = frozenset()
    priority_namespaces: frozenset[str] | None = frozenset()
    """None: the installation's are not known (`hamictl lint`), and nothing is refused for it."""
    host_folders: tuple[str, ...] = HOST_FOLDERS

    @classmethod
    def of(cls, settings: AdmissionSettings) -> TamperingPolicy:
        """Make the policy from the settings HAMI_ADMISSION_*."""
        return cls(
            mode=settings.tampering,
            trusted_namespaces=frozenset(settings.trusted_namespaces),
            priority_namespaces=frozenset(settings.priority_namespaces),
            host_folders=settings.host_folders,
        )

    def standing(self, namespace: str) -> NamespacePermits:
        """Return the permissions of a namespace's pods; without a name those of `default`."""
        namespace = namespace or "default"
        known = self.priority_namespaces
        if known is None:
            return NamespacePermits(_names(self.trusted_namespaces, namespace), "unknown")
        first = _names(known, namespace)
        return NamespacePermits(
            _names(self.trusted_namespaces, namespace), "may" if first else "may-not"
        )


STRICT = TamperingPolicy()
"""The default."""


def _names(listed: Collection[str], namespace: str) -> bool:
    return namespace in listed or EVERY in listed
