"""Frameworks in a slice of a real card, each with its own allocator.

Each gets its slice, fails beyond it with its own out-of-memory error, continues afterwards, and
computes the same results as without the library.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.card import GIB, Tenant, answer

PROGRAMS = Path(__file__).parent / "programs"
SLICE = 4 * GIB
CONTEXT = GIB
"""More than a context with its modules costs on any card."""
BLOCK = 64 << 20


def needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


def run(tenant: Tenant, program: str, **limits: int) -> Any:
    tenant.limit(**limits)
    return answer(tenant.start(sys.executable, PROGRAMS / program))


@needs("torch")
@pytest.mark.parametrize(
    "allocator",
    ["", "expandable_segments:True", "backend:cudaMallocAsync"],
    ids=["its own", "expandable segments", "the driver's"],
)
def test_pytorch_ends_at_its_slice_and_goes_on(
    tenants: list[Tenant], allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", allocator)
    result = run(tenants[0], "torch_memory.py", memory_bytes=SLICE)
    assert result["caught"]
    assert SLICE - CONTEXT <= result["taken"] <= SLICE
    assert result["total"] == result["properties"] == SLICE
    assert result["free"] < BLOCK
    assert result["sum"] == 1 << 20


@needs("torch")
def test_pytorch_trains_and_replays_graphs_as_without_a_limit(tenants: list[Tenant]) -> None:
    limited = run(tenants[0], "torch_training.py", memory_bytes=SLICE)
    assert limited == run(tenants[1], "torch_training.py")
    assert limited["graph"]


@needs("torch")
def test_a_tensor_of_another_process_is_charged_once(tenants: list[Tenant]) -> None:
    result = run(tenants[0], "torch_shared.py", memory_bytes=SLICE)
    assert (result["sum"], result["exit"]) == (1 << 28, 0)
    # One GiB of the tensor, and two contexts.
    assert SLICE - GIB - 2 * CONTEXT <= result["child_free"] < SLICE - GIB


@needs("jax")
def test_jax_takes_its_part_of_the_slice(tenants: list[Tenant]) -> None:
    result = run(tenants[0], "jax_memory.py", memory_bytes=SLICE)
    assert result["sum"] == 2048.0**3
    # Its allocator takes three quarters of the memory that it sees.
    assert result["limit"] <= SLICE * 3 // 4
    assert "RESOURCE_EXHAUSTED" in result["caught"]


@needs("cupy")
def test_cupy_ends_at_its_slice(tenants: list[Tenant]) -> None:
    result = run(tenants[0], "cupy_memory.py", memory_bytes=SLICE)
    assert result["caught"]
    assert SLICE - CONTEXT <= result["taken"] <= SLICE
    assert result["raw"] == 64
