"""A letter and a colour for each of the largest owners; the same all day. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

LETTERS = "ABCDEFGH"
"""One per colour of Okabe and Ito's palette; more look alike."""
REST = "·"
"""The letter of all other owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLetter:
    """One line of the legend."""

    namespace: str
    letter: str
    css: str
    percent: float
    """Of all granted memory."""


@dataclass(frozen=True, slots=True)
class OwnerLetters:
    """The legend, and what it gives each namespace; equal ones give the same letters."""

    legend: tuple[OwnerLetter, ...] = field(compare=False)
    rest: int = field(compare=False)
    """How many owners have no letter of their own."""
    letters: Mapping[str, int]

    def letter(self, namespace: str) -> str:
        """Its letter, or that of the rest."""
        number = self.letters.get(namespace)
        return REST if number is None else LETTERS[number]

    def css(self, namespace: str) -> str:
        """Its class of colour, or that of the rest."""
        number = self.letters.get(namespace)
        return "o0" if number is None else f"o{number + 1}"


def owners(held: Mapping[str, int], now: datetime) -> OwnerLetters:
    """`held`: granted MiB by namespace, the largest first.

    A letter depends on the namespace's name and the day; two that want one take the next.
    """
    largest = list(held)[: len(LETTERS)]
    taken: dict[int, str] = {}
    for namespace in sorted(largest):
        number = _wish(namespace, now)
        while number in taken:
            number = (number + 1) % len(LETTERS)
        taken[number] = namespace
    letters = {namespace: number for number, namespace in taken.items()}
    total = sum(held.values())
    legend = tuple(
        OwnerLetter(
            namespace=namespace,
            letter=LETTERS[letters[namespace]],
            css=f"o{letters[namespace] + 1}",
            percent=100 * held[namespace] / total if total else 0.0,
        )
        for namespace in largest
    )
    return OwnerLetters(legend=legend, rest=len(held) - len(largest), letters=letters)


def _wish(namespace: str, now: datetime) -> int:
    digest = hashlib.blake2b(f"{now:%Y-%m-%d} {namespace}".encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big") % len(LETTERS)
