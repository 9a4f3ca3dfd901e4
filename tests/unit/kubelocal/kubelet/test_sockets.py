"""Which plugins may register."""

import pytest
from kubelocal.kubelet.sockets import refuse_registration


def test_a_good_registration_is_taken() -> None:
    assert refuse_registration("v1beta1", "nvidia.com/gpu", "nvidia-gpu.sock") is None


@pytest.mark.parametrize(
    ("version", "resource", "endpoint", "why"),
    [
        ("v1alpha1", "nvidia.com/gpu", "a.sock", 'requested API version "v1alpha1"'),
        ("v1beta1", "gpu", "a.sock", 'the ResourceName "gpu" is invalid'),
        ("v1beta1", "kubernetes.io/gpu", "a.sock", "is invalid"),
        ("v1beta1", "nvidia.com/gpu", "../a.sock", "is not a file name"),
        ("v1beta1", "nvidia.com/gpu", "", "is not a file name"),
    ],
)
def test_a_bad_registration_is_refused_with_the_reason(
    version: str, resource: str, endpoint: str, why: str
) -> None:
    assert why in (refuse_registration(version, resource, endpoint) or "")
