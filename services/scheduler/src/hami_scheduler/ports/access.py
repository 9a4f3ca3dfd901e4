"""What calls of the operators' API need, as the cluster's RBAC grants it.

The resource `scheduler.hami.io` exists for this alone: administrators grant it with the
ClusterRoles `hami-reader` and `hami-operator`. `operator_access.py` asks for every call. The
extender's verbs are served on another port, to a client certificate, and no token opens them.
"""

from __future__ import annotations

from enum import StrEnum

from hamicommon.access.checks import Right

GROUP = "hami.io"
RESOURCE = "scheduler"


class Role(StrEnum):
    """What a call needs; the values are the verbs that RBAC grants."""

    READ = "get"
    OPERATE = "update"

    @property
    def right(self) -> Right:
        """What the API server is asked about."""
        return _RIGHTS[self]


_RIGHTS = {
    role: Right(verb=role.value, group=GROUP, resource=RESOURCE, role=name)
    for role, name in ((Role.READ, "hami-reader"), (Role.OPERATE, "hami-operator"))
}
