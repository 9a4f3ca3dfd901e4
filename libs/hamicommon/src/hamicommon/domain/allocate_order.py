"""How much the order of a kubelet's Allocate calls means on a node.

The calls don't name their pods. The node's agent reports it with its readiness, and the node lock
keeps apart what must not be mixed up.
"""

from __future__ import annotations

from enum import StrEnum


class AllocateOrder(StrEnum):
    """Which pods may be between bind and Allocate on a node at the same moment."""

    ONE_BY_ONE = "one-by-one"
    """One pod alone, as far as is known."""
    ALIKE = "alike"
    """Pods whose grants differ in nothing but the pod."""
    TEMPLATE = "template"
    """Those, and pods of one slice each whose grants differ in the card too."""
    ANY = "any"
    """Any: the node binds late."""
