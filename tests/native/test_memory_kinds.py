"""Every way of taking device memory is counted, limited, freed and seen by other processes."""

import pytest

from tests.native.allocators import KINDS
from tests.native.conformance import Verdict, measure
from tests.native.machine import Container, Machine


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_taking_memory_is_held_to_the_slice(
    container: Container, machine: Machine, kind: str
) -> None:
    assert measure(kind, container, machine) == Verdict(True, True, True, True)
