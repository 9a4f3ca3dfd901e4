"""Findings in a pod that would bypass limits, the sentences about them, and the rules for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hamicommon.clipping import clip
from hamicommon.settings import HOST_FOLDERS, AdmissionSettings, TamperingMode

Kind = Literal["privileged", "host-namespace", "capability", "variable", "mount", "device"]

MAX_FINDINGS = 256
"""Number of findings above which a pod is always refused and nothing is removed from it."""
MAX_SENTENCES = 3
"""Maximum number of findings in a refusal; a pod may have thousands of variables."""
TRUST = "HAMI_ADMISSION_TRUSTED_NAMESPACES"
PRIORITY = "HAMI_ADMISSION_PRIORITY_NAMESPACES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A part of a pod that bypasses limits, or takes cards that were not granted."""

    kind: Kind
    what: str
    """Short name for a node's reason: `variable LD_AUDIT of container main`."""
    sentence: str
    """Sentence with place, value, effect, and what would be right."""
    part: str = ""
    """Name of the list in the pod's spec that has the container; empty: the pod itself."""
    index: int = 0
    """Index of the container in that list."""
    place: int = 0
    """Index of the entry in the container's list of variables or mounts."""
    name: str = ""
    """Name of the variable, capability or field."""
    instead: str | None = None
    """Value that replaces a removed variable; None: it is only removed."""
    needs: Literal["trust", "priority"] = "trust"
    unknown: bool = False
    """Whether the namespace's permission is unknown, so that the finding is only warned of."""

    @property
    def strippable(self) -> bool:
        """Whether the part can be removed.

        Without `privileged` a container would be another one.
        """
        return self.kind != "privileged"


def refusal(findings: Sequence[Finding]) -> str:
    """Return the sentence of a refusal for these findings (at least one)."""
    shown = "; ".join(each.sentence for each in findings[:MAX_SENTENCES])
    more = len(findings) - MAX_SENTENCES
    needed = {each.needs for each in findings}
    permits = [name for kind, name in (("trust", TRUST), ("priority", PRIORITY)) if kind in needed]
    least = "at least " if len(findings) > MAX_FINDINGS else ""
    rest = f"; and {least}{more} more" if more > 0 else ""
    return f"{shown}{rest} (an operator permits it by {' and '.join(permits)})"


def in_short(findings: Sequence[Finding]) -> str:
    """Return the findings as a short reason of a node: kube-scheduler gets it once per node.

    Without a comma, which parts reasons.
    """
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return clip(findings[0].what, 128).replace(",", " ") + more


EVERY = "*"
"""Entry in a list of namespaces that stands for all of them."""


class NamespacePermits(NamedTuple):
    """Permissions of a namespace for its pods."""

    trusted: bool = False
    """Whether nothing in its pods is judged."""
    priority: Literal["may", "may-not", "unknown"] = "may-not"
    """Whether its pods may set a priority on their cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TamperingPolicy:
    """Rules of the installation about bypassing limits; hashable."""

    mode: TamperingMode = "refuse"
    trusted_namespaces: frozenset[str] = frozenset()
    priority_namespaces: frozenset[str] | None = frozenset()
    """Namespaces that may set a priority; None: unknown (`hamictl lint`), so only warn of it."""
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
        """Return the permissions of a namespace's pods; an empty name counts as `default`."""
        namespace = namespace or "default"
        known = self.priority_namespaces
        if known is None:
            return NamespacePermits(_names(self.trusted_namespaces, namespace), "unknown")
        first = _names(known, namespace)
        return NamespacePermits(
            _names(self.trusted_namespaces, namespace), "may" if first else "may-not"
        )


STRICT = TamperingPolicy()
"""Default policy."""


def _names(listed: Collection[str], namespace: str) -> bool:
    return namespace in listed or EVERY in listed
