"""Find what would bypass limits in a pod: variables, mounts, host namespaces, capabilities.

In: a pod as raw JSON of any shape, and what its namespace may do; out: `Finding`s. Pure. In pods
that ask for cards all containers are judged, init, sidecar and ephemeral ones too; in other pods
only what takes cards from the runtime and bypasses the scheduler, and there a privileged container
is let be, because it has every device of its node anyway. docs/admission.md has the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from hamicommon.admission.tampering.containers import containers_of
from hamicommon.admission.tampering.findings import (
    MAX_FINDINGS,
    Finding,
    NamespacePermits,
    TamperingPolicy,
)
from hamicommon.admission.tampering.mounts import MountRules
from hamicommon.admission.tampering.variables import VariableRules
from hamicommon.admission.whole_cards import has_whole_cards_only
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors


class Guard:
    """Find and hide according to the installation's vendors and rules."""

    def __init__(self, vendors: Vendors, policy: TamperingPolicy) -> None:
        self.vendors = vendors
        self.policy = policy
        self.mounts = MountRules(vendors, policy.host_folders)
        self.variables = VariableRules(vendors)

    @classmethod
    def of(cls, vendors: Vendors, policy: TamperingPolicy) -> Guard:
        """Return the guard for these rules, made once."""
        known: Guard | None = vendors.memory.get(policy)
        if known is None:
            known = vendors.memory[policy] = cls(vendors, policy)
        return known

    def findings(
        self, pod: Json, standing: NamespacePermits, *, wants: bool
    ) -> tuple[Finding, ...]:
        """Return the pod's findings; `wants`: whether the pod asks for a card.

        The search ends after `MAX_FINDINGS` and one more: `settle` refuses a pod with so many.
        """
        spec: Any = pod.get("spec")
        if standing.trusted or not isinstance(spec, dict):
            return ()
        return tuple(islice(self._of_spec(pod, spec, standing, wants), MAX_FINDINGS + 1))

    def at_filter(self, pod: Json) -> tuple[Finding, ...]:
        """Return the findings for which the scheduler refuses a pod that bypassed admission.

        The pod asks for a card, and nothing can be stripped from it any more.
        """
        if self.policy.mode == "allow":
            return ()
        metadata = pod.get("metadata") or {}
        standing = self.policy.standing(str(metadata.get("namespace") or ""))
        return self.findings(pod, standing, wants=True)

    def hide_cards(self, container: Json) -> None:
        """Set variables that hide all cards from a container without one, if configured."""
        for vendor in self.vendors:
            vendor.hide_cards(container)

    def _of_spec(
        self, pod: Json, spec: Json, standing: NamespacePermits, wants: bool
    ) -> Iterator[Finding]:
        hosts: dict[str, str] = {}
        whole_cards: bool | None = None
        if wants:
            hosts = self.mounts.host_volumes(spec.get("volumes"))
            if spec.get("hostPID"):
                yield Finding(
                    kind="host-namespace",
                    name="hostPID",
                    what="hostPID",
                    sentence="hostPID is true: it reaches other pods' processes; leave it out",
                )
        for at in containers_of(spec):
            if wants:
                yield from at.privileges()
            elif at.privileged:
                continue
            for finding in self.variables.findings(at, standing, wants=wants):
                harmless = finding.name in self.variables.harmless_with_whole_cards
                if harmless and whole_cards is None:
                    whole_cards = has_whole_cards_only(pod, self.vendors)
                if not (harmless and whole_cards):
                    yield finding
            yield from self.mounts.findings(at, hosts, wants=wants)
