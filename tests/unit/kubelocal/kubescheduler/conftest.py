"""Schedulers and API servers that must behave alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.control_plane import ApiServer, Assets, ControlPlane, control_plane, prepare_emulator
from tests.processes import running
from tests.unit.kubelocal.kubescheduler.worlds import Kind, World, open_world


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One emulated API server for the module."""
    server = prepare_emulator(tmp_path_factory.mktemp("emulator"))
    with running(server.plan, die_with_parent=True):
        yield server


@pytest.fixture(scope="module")
def plane(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One real API server for the module."""
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, assets=kubernetes_assets) as running_plane:
        yield running_plane


REAL = pytest.mark.e2e
KINDS = [
    "ours on the emulator",
    pytest.param("ours on a real server", marks=REAL),
    pytest.param("real on a real server", marks=REAL),
]


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every combination that must behave alike."""
    scheduler = "real" if request.param.startswith("real") else "ours"
    if "emulator" in request.param:
        return Kind(scheduler=scheduler, server=request.getfixturevalue("emulator"), plane=None)
    plane = request.getfixturevalue("plane")
    return Kind(scheduler=scheduler, server=plane.server, plane=plane)


@pytest.fixture
async def world(kind: Kind, tmp_path: Path) -> AsyncIterator[World]:
    """An empty cluster with the scheduler under test."""
    async with open_world(kind, tmp_path) as found:
        yield found
