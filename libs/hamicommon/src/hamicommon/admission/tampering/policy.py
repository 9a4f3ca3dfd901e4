"""How an installation deals with what undoes slices: one mode, and what namespaces may."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hamicommon.settings import HOST_FOLDERS, AdmissionSettings, TamperingMode

EVERY = "*"
"""In a list of namespaces: all of them."""


class NamespacePermits(NamedTuple):
    """What a pod's namespace may do."""

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
        """From the variables HAMI_ADMISSION_*."""
        return cls(
            mode=settings.tampering,
            trusted_namespaces=frozenset(settings.trusted_namespaces),
            priority_namespaces=frozenset(settings.priority_namespaces),
            host_folders=settings.host_folders,
        )

    def standing(self, namespace: str) -> NamespacePermits:
        """Of the pods of a namespace; no name: of `default`."""
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
