"""These tests run on a real card, and are skipped, with the reason, if there is none.

    pytest tests/gpu -rs

They need the native parts built, an NVIDIA driver and a card without other users; PyTorch and nvcc
if the test's name has them.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.gpu.card import Card, Tenant, find_card
from tests.native.machine import ROOT


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def card() -> Card:
    found = find_card()
    if isinstance(found, str):
        pytest.skip(f"no GPU: {found}")
    subprocess.run(["make", "-s", "-C", ROOT / "native"], check=True, timeout=300)
    return found


@pytest.fixture
def tenants(card: Card, tmp_path: Path) -> Iterator[list[Tenant]]:
    """Two containers on the card, without limits so far."""
    made = [Tenant(card, tmp_path / name) for name in ("one", "two")]
    yield made
    for tenant in made:
        tenant.stop()


@pytest.fixture(scope="session")
def nvcc(card: Card) -> str:
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        pytest.skip("no nvcc: the CUDA toolkit is not installed")
    return found
