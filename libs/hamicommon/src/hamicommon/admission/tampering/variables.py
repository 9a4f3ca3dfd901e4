"""Judge variables of containers that bypass limits, or take cards without a grant.

The vendors declare them (`vendors/interface/vendor.py`). Only the names and literal values of a
container's `env` can be judged: a pod's spec shows neither for `envFrom`, and a program may set any
variable itself. So only variables that the node and its container runtime read matter, and there
`env` takes precedence over `envFrom` (docs/admission.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hamicommon.admission.tampering.containers import JudgedContainer, objects
from hamicommon.admission.tampering.findings import Finding, NamespacePermits
from hamicommon.clipping import clip
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import GuardedVariable
from hamicommon.vendors.registry import Vendors

_SHOWN = 64
"""Maximum characters of a variable's value in a message."""


class VariableRules:
    """Rules for the values of the vendors' variables."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._known = {each.name: each for vendor in vendors for each in vendor.guarded_variables}
        self._numbered = tuple(f"{each.name}_" for each in self._known.values() if each.numbered)

    @property
    def harmless_with_whole_cards(self) -> frozenset[str]:
        """Names of variables that bypass nothing in a pod with whole cards only."""
        return frozenset(name for name, each in self._known.items() if each.with_whole_cards)

    @property
    def in_every_pod(self) -> tuple[str, ...]:
        """Names of variables that are also judged in pods without a card."""
        return tuple(name for name, each in self._known.items() if each.without_card)

    def findings(
        self, at: JudgedContainer, standing: NamespacePermits, *, wants: bool
    ) -> Iterator[Finding]:
        """Yield the findings of one container; `wants`: its pod asks for a card."""
        if "env" not in at.container:
            return
        for place, entry in enumerate(objects(at.container["env"])):
            variable = self._variable(entry.get("name"))
            if variable is None or not (wants or variable.without_card):
                continue
            if variable.needs == "priority" and standing.priority == "may":
                continue
            if not _is_harmless(entry, variable):
                yield self._finding(at, place, entry, variable, standing)

    def _variable(self, name: Any) -> GuardedVariable | None:
        if not isinstance(name, str):
            return None
        found = self._known.get(name)
        if found is not None or not name.startswith(self._numbered):
            return found
        return self._known[next(each for each in self._numbered if name.startswith(each))[:-1]]

    def _finding(
        self,
        at: JudgedContainer,
        place: int,
        entry: Json,
        variable: GuardedVariable,
        standing: NamespacePermits,
    ) -> Finding:
        value = "set from elsewhere" if entry.get("valueFrom") else _quote(entry.get("value", ""))
        right = "leave it out"
        if variable.needs == "priority":
            right = f"expected {variable.instead} or more"
        # If the container has its own cards, the node names them.
        granted = variable.without_card and self._asks(at.container)
        return at.finding(
            "variable",
            f"variable {clip(entry['name'], _SHOWN)}",
            f"is {value}: {variable.effect}; {right}",
            place=place,
            name=entry["name"],
            instead=None if granted else variable.instead,
            needs=variable.needs,
            unknown=variable.needs == "priority" and standing.priority == "unknown",
        )

    def _asks(self, container: Json) -> bool:
        """Return whether this container itself asks for a card."""
        return any(
            amounts.asks(container, name)
            for vendor in self._vendors.concerned_by(container)
            for name in (vendor.resources.count, *vendor.resources.alone)
        )


def _is_harmless(entry: Json, variable: GuardedVariable) -> bool:
    """Return whether the value is known to be harmless.

    One from elsewhere, or with other variables in it, is not.
    """
    value = entry.get("value")
    if entry.get("valueFrom"):
        return False
    if value is None:
        value = ""
    return isinstance(value, str) and "$(" not in value and variable.harmless(value)


def _quote(value: object) -> str:
    return f"'{clip(str(value), _SHOWN)}'"
