"""Parts of a container's spec that undo a vendor's slices or take cards that were not granted.

A vendor whose node-side parts read a container's variables or mounts declares them here;
`admission/tampering/` judges pods by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from hamicommon.k8s.types import Json


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


@runtime_checkable
class GuardsSlices(Protocol):
    """A vendor whose slices, or cards, can be had by a variable or a mount."""

    @property
    def guarded_variables(self) -> tuple[GuardedVariable, ...]:
        """The variables, each once."""

    @property
    def request_folder(self) -> str:
        """The folder in a container whose mounts the runtime takes for requests; empty: none."""

    def hide_cards(self, container: Json) -> None:
        """Writes into a container that asks for no card what keeps the runtime from showing it any,
        where the device configuration wants that (`overwriteEnv`)."""
