"""A real control plane, our services, and a real autoscaler; skipped where one is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.control_plane import Assets
from tests.e2e.conftest import kubernetes_client, running_system
from tests.e2e.system import System
from tests.e2e_autoscalers.pools import (
    AUTOSCALERS,
    CARD_MIB,
    CARDS,
    POOL,
    Kubelets,
    create,
)

VARIABLE = "HAMI_AUTOSCALERS"
"""Folder with cluster-autoscaler, karpenter (each with its kwok provider) and Karpenter's crds."""
TYPES = [
    {
        "name": POOL,
        "selector": {"pool": POOL},
        "max": 6,
        "cpu": 96,
        "memory": "700Gi",
        "cards": [{"count": CARDS, "type": "NVIDIA A100", "memory": CARD_MIB}],
    }
]
Rig = Callable[..., AbstractContextManager[tuple[System, Kubelets]]]


@pytest.fixture(scope="session")
def autoscalers(kubernetes_assets: Assets) -> Path:
    """The folder of the programs."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no folder with cluster-autoscaler and karpenter")
    return Path(named)


@pytest.fixture
def rig(autoscalers: Path, tmp_path: Path) -> Rig:
    """Start everything with the autoscaler of this name; settings are variables."""

    @contextmanager
    def start(
        autoscaler: str, settings: dict[str, str] | None = None, **options: object
    ) -> Iterator[tuple[System, Kubelets]]:
        if autoscaler and not os.access(autoscalers / autoscaler, os.X_OK):
            pytest.skip(f"{autoscalers} ({VARIABLE}) holds no executable {autoscaler}")
        types = tmp_path / "types.yaml"
        types.write_text(yaml.safe_dump(TYPES))
        environment = {
            "HAMI_WEBHOOK_MARK_SLICES": "on",
            "HAMI_SCHEDULER_SCALE": "on",
            "HAMI_SCHEDULER_SCALE_AFTER_S": "2",
            "HAMI_SCHEDULER_SCALE_TYPES_FILE": str(types),
            "HAMI_SCHEDULER_SCALE_IMAGE": "pause",
            "HAMI_SCHEDULER_SCALE_GROUP_LABELS": "pool",
        } | (settings or {})
        with running_system("real", "--nodes", "0", environment=environment) as system:
            namespaces = {
                each["metadata"]["name"] for each in system.get("/api/v1/namespaces")["items"]
            }
            if "hami-system" not in namespaces:
                create(system, "/api/v1/namespaces", {"metadata": {"name": "hami-system"}})
            create(
                system,
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {"metadata": {"name": "hami-placeholder"}, "value": -1},
            )
            kubeconfig = Path(system.described["kubeconfig"])
            with kubernetes_client(kubeconfig) as api:
                kubelets = Kubelets(api)
                with kubelets.running():
                    if not autoscaler:
                        yield system, kubelets
                        return
                    with AUTOSCALERS[autoscaler](system, autoscalers, kubeconfig, **options):
                        yield system, kubelets

    return start
