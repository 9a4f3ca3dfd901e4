"""Every way of taking device memory is counted, limited, freed and seen by other processes."""

import pytest

from tests.native.allocators.allocators import KINDS
from tests.native.allocators.conformance import DOCUMENT, HELD, measure, render
from tests.native.machine import Container, Machine


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_taking_memory_is_held_to_the_slice(
    container: Container, machine: Machine, kind: str
) -> None:
    assert measure(kind, container, machine) == HELD


def test_the_conformance_document_is_of_this_code() -> None:
    assert DOCUMENT.read_text() == render(), (
        "native/libvgpu/CONFORMANCE.md is stale: python -m tests.native.allocators.conformance"
    )
