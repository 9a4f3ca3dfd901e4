import pytest
from hami_node_agent.domain.late import late_answer, nonce_of, way_of


@pytest.mark.parametrize(
    ("kubelet", "runtime", "late", "why"),
    [
        ("v1.31.2", "containerd://2.1.9", True, "kubelet v1.31.2, containerd://2.1.9"),
        ("v1.29.0", "cri-o://1.28.1", True, "cri-o"),
        ("v1.28.9", "containerd://2.0.0", False, "the kubelet is older than 1.29"),
        ("v1.30.0", "containerd://1.7.24", False, "CDI is off there before 2.0"),
        ("v1.30.0", "containerd://1.6.20~ds1", False, "CDI is off there before 2.0"),
        ("v1.30.0", "docker://27.0.1", False, "whether it honours CDI is not known"),
        ("", "", False, "the kubelet is older"),
    ],
)
def test_a_node_binds_late_where_its_versions_honour_cdi(
    kubelet: str, runtime: str, late: bool, why: str
) -> None:
    way = way_of(kubelet, runtime)

    assert way.late is late
    assert why in way.reason
    assert str(way).startswith("late: " if late else "lock: ")


def test_a_name_is_a_nonce_and_other_kinds_are_not_ours() -> None:
    [name] = late_answer("6f1d").cdi_devices

    assert (name, nonce_of(name)) == ("hami.io/slice=6f1d", "6f1d")
    assert nonce_of("nvidia.com/gpu=0") is None
    assert nonce_of("hami.io/slice") is None
