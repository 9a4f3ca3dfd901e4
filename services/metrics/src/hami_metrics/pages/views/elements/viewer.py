"""Who looks, and whose names that person may read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hami_metrics.domain.redaction import ShowOwners

OTHER = "other"
"""In place of a namespace and a pod that the viewer may not list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViewer:
    """`namespaces` None: all of them. `show`: what one sees of the others."""

    name: str = field(default="", compare=False)
    namespaces: frozenset[str] | None = None
    show: ShowOwners = ShowOwners.SIZES

    def sees(self, namespace: str) -> bool:
        """Whether names of pods of this namespace are shown."""
        if self.namespaces is None or self.show is ShowOwners.NAMES:
            return True
        return namespace in self.namespaces

    def namespace(self, namespace: str) -> str:
        """The name, or `other`."""
        if self.show is ShowOwners.NAMESPACES or self.sees(namespace):
            return namespace
        return OTHER

    def pod(self, namespace: str, name: str) -> str:
        """`namespace/name`, or as much of it as may be shown."""
        if self.sees(namespace):
            return f"{namespace}/{name}"
        return self.namespace(namespace)


EVERYBODY = PageViewer()
"""Where no identity is asked for: all is shown, on the loopback device alone."""
