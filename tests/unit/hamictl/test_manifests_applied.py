"""Whether a pod that exists is the one of the manifest."""

from __future__ import annotations

from typing import Any

import pytest
from hamictl.manifests import differences


def pod(image: str = "cuda", **limits: object) -> dict[str, Any]:
    return {
        "spec": {"containers": [{"name": "c", "image": image, "resources": {"limits": limits}}]}
    }


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        (pod(gpu=1), pod(gpu="1", gpumem="4096")),
        (pod(memory="1024Mi"), pod(memory="1Gi")),
        (pod(gpumem=1), pod(gpu="1")),
    ],
)
def test_what_the_cluster_writes_again_or_fills_in_is_no_difference(
    wanted: dict[str, Any], there: dict[str, Any]
) -> None:
    assert differences(wanted, there) == []


def test_another_amount_or_image_or_container_is_named() -> None:
    assert differences(pod(gpumem=2000), pod(gpumem="1000")) == ["gpumem of c"]
    assert differences(pod("b"), pod("a")) == ["image of c"]
    assert differences(pod(), {"spec": {"containers": []}}) == ["container c"]
