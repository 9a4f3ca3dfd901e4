"""Access to one container of a pod that may be malformed JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hamicommon.admission.tampering.findings import Finding, Kind
from hamicommon.clipping import clip
from hamicommon.k8s.types import Json

LISTS = ("initContainers", "containers", "ephemeralContainers")
CAPABILITIES = frozenset(
    {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "DAC_READ_SEARCH", "BPF"}
)
"""Capabilities with which a container could unmount limits, or reach others on its node."""


@dataclass(frozen=True, slots=True)
class JudgedContainer:
    """A container with its place in the pod."""

    part: str
    index: int
    container: Json

    @property
    def name(self) -> str:
        """Name of the container, for messages."""
        return clip(str(self.container.get("name", "")), 64)

    @property
    def privileged(self) -> bool:
        """Whether the container is privileged, which gives it all devices of its node."""
        return bool(object_of(self.container, "securityContext").get("privileged"))

    def finding(
        self,
        kind: Kind,
        what: str,
        why: str,
        *,
        place: int = 0,
        name: str = "",
        instead: str | None = None,
        needs: Literal["trust", "priority"] = "trust",
        unknown: bool = False,
    ) -> Finding:
        """Return a finding about this container: `what` was found, and `why` it is refused."""
        return Finding(
            kind=kind,
            what=f"{what} of container {self.name}",
            sentence=f"container {self.name!r}: {what} {why}",
            part=self.part,
            index=self.index,
            place=place,
            name=name,
            instead=instead,
            needs=needs,
            unknown=unknown,
        )

    def privileges(self) -> Iterator[Finding]:
        """Yield the findings about its security context."""
        context = self.container.get("securityContext")
        if not isinstance(context, dict):
            return
        if context.get("privileged"):
            sentence = f"container {self.name} is privileged"
            yield Finding(
                kind="privileged",
                what=sentence,
                sentence=sentence,
                part=self.part,
                index=self.index,
            )
        added = object_of(context, "capabilities").get("add")
        for name in added if isinstance(added, list) else ():
            if is_undoing(name):
                why = "can undo its limits; leave it out"
                yield self.finding("capability", f"capability {name}", why, name=name)


def is_undoing(capability: object) -> bool:
    """Return whether a runtime takes the name for one of `CAPABILITIES` (`cap_sys_admin`, too)."""
    if not isinstance(capability, str):
        return False
    return capability.upper().removeprefix("CAP_") in CAPABILITIES


def containers_of(spec: Json) -> Iterator[JudgedContainer]:
    """Return all containers of a pod, also init and ephemeral ones."""
    for part in LISTS:
        for index, container in enumerate(objects(spec.get(part))):
            yield JudgedContainer(part, index, container)


def objects(value: Any) -> list[Json]:
    """Return the value if it is a list of objects, otherwise an empty list."""
    if not isinstance(value, list):
        return []
    # Places in the list are counted, so one that is no object keeps its own.
    return [each if isinstance(each, dict) else {} for each in value]


def object_of(holder: Json, key: str) -> Json:
    """Return the object under a key; empty if there is none."""
    value = holder.get(key)
    return value if isinstance(value, dict) else {}
