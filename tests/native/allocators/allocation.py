"""Common parts of all allocators of device memory: the driver, and the list of them."""

import ctypes
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any


class Driver:
    """The driver, loaded with the first call: the tests read KINDS where there is none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)


cuda = Driver()

GiveBack = Callable[[], int]
Taken = tuple[int, GiveBack | None]
LEGACY = c_void_p(0)


@dataclass(frozen=True)
class Kind:
    """One way: the driver functions that take and end it, and what may follow."""

    name: str
    takes: str
    ends: str
    take: Callable[[int], Taken]
    given_up: bool = False  # the process that holds it lets it go before it is refused anything


KINDS: dict[str, Kind] = {}


class RefusedError(Exception):
    """A driver call failed; the argument is its CUresult."""


def ok(result: int) -> None:
    if result != 0:
        raise RefusedError(result)


def kind(
    name: str, takes: str, ends: str, given_up: bool = False
) -> Callable[[Callable[[int], GiveBack]], Callable[[int], GiveBack]]:
    """Registers a way; the function raises RefusedError where the driver refuses."""

    def register(function: Callable[[int], GiveBack]) -> Callable[[int], GiveBack]:
        def take(size: int) -> Taken:
            try:
                return 0, function(size)
            except RefusedError as refused:
                return int(refused.args[0]), None

        KINDS[name] = Kind(name, takes, ends, take, given_up)
        return function

    return register
