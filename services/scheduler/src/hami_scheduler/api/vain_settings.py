"""What people set in the cluster and nothing follows from: quotas that limit nothing, cordons of no
card. `hamictl doctor` and `hamictl get quotas` show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.k8s.annotations import DEVICE_CORDON

from hami_scheduler.ports.queries import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class VainSettings:
    """The settings as this replica's watches know them; both mappings are theirs and change."""

    quotas: Mapping[tuple[str, str], Mapping[str, str]]
    """(namespace, name) -> key -> reason."""
    cordons: Mapping[str, Mapping[str, str]]
    """Node -> entry -> reason."""

    def rows(self) -> list[Row]:
        """One row for each, quotas first."""
        return [
            *(
                _row("ResourceQuota", namespace, name, key, why)
                for (namespace, name), mistakes in sorted(self.quotas.items())
                for key, why in mistakes.items()
            ),
            *(
                _row("Node", None, node, DEVICE_CORDON, why)
                for node, unmatched in sorted(self.cordons.items())
                for why in unmatched.values()
            ),
        ]


def _row(kind: str, namespace: str | None, name: str, setting: str, problem: str) -> Row:
    return {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "setting": setting,
        "problem": problem,
    }
