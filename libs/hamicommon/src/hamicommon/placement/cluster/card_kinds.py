"""Numbers for what cards and nodes are alike in, so that a rule about a kind is asked once.

A model is a card without its individuality (`cards.model_of`); a make-up is the sequence of models
on a node. Both are counted, so that kinds which are gone from the cluster do not stay in memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Kinds(Generic[K]):
    """Distinct values with small numbers from 1 on; a number that nothing uses is given again."""

    def __init__(self) -> None:
        self.by_number: list[K | None] = [None]
        """None where the number is not in use; 0 never is."""
        self._numbers: dict[K, int] = {}
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def hold(self, value: K) -> int:
        """The number of `value`, used once more."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._new(value)
        self._uses[number] += 1
        return number

    def release(self, number: int) -> None:
        """Takes one use back."""
        self._uses[number] -= 1
        if self._uses[number] == 0:
            value = self.by_number[number]
            assert value is not None
            del self._numbers[value]
            self.by_number[number] = None
            self._free.append(number)

    def _new(self, value: K) -> int:
        if self._free:
            number = self._free.pop()
            self.by_number[number] = value
            return number
        self.by_number.append(value)
        self._uses.append(0)
        return len(self.by_number) - 1
