"""Parts of a container's spec that undo a vendor's slices or take cards that were not granted.

A vendor whose node-side parts read a container's variables or mounts declares them here;
`admission/tampering/` judges pods by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedVariable:
    """A variable that a container may not set to whatever it likes."""

    name: str
    harmless: Callable[[str], bool]
    """Whether a literal value does nothing to a slice."""
    effect: str
    """Effect of any other value, as the part of a sentence: `it switches the limits off`."""
    numbered: bool = False
    """`<name>_0` and the like are read, too."""
    needs: Literal["trust", "priority"] = "trust"
    """Permit that a namespace must have for it."""
    without_card: bool = False
    """The runtime gives cards by it to containers that asked for none, so it is judged in every
    pod."""
    with_whole_cards: bool = False
    """The variable undoes nothing in a pod whose containers have whole cards only."""
    instead: str | None = None
    """Value that is written where it is stripped; None: the variable is removed."""
