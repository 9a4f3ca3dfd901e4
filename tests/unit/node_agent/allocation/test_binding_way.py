from dataclasses import replace

import pytest
from hami_node_agent.allocation.binding_way import RuntimeReport, named_by, way_of
from hami_node_agent.allocation.response import late_answer, nonce_of

DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")


def containerd(
    version: str, *, cdi: bool | None = None, dirs: tuple[str, ...] | None = DEFAULT_DIRS
) -> RuntimeReport:
    return RuntimeReport(name="containerd", version=version, cdi_enabled=cdi, cdi_dirs=dirs)


CRI_O = RuntimeReport(name="cri-o", version="1.28.1", cdi_dirs=DEFAULT_DIRS)


@pytest.mark.parametrize(
    ("kubelet", "runtime", "late", "why"),
    [
        ("v1.31.2", containerd("2.1.9", cdi=True), True, "kubelet v1.31.2, containerd 2.1.9"),
        ("v1.31.2", containerd("v1.7.24", cdi=True), True, "it supports CDI"),
        ("v1.31.2", containerd("2.3.0"), True, "it supports CDI"),
        ("v1.29.0", CRI_O, True, "cri-o 1.28.1"),
        ("v1.31.2", containerd("2.1.9", cdi=False), False, "enable_cdi is false"),
        ("v1.31.2", containerd("1.7.24"), False, "lacks enable_cdi"),
        ("v1.31.2", containerd("2.1.9", dirs=None), False, "set cri_socket"),
        ("v1.31.2", containerd("2.1.9", cdi=True, dirs=("/etc/cdi",)), False, "in /etc/cdi, and"),
        ("v1.28.9", containerd("2.0.0", cdi=True), True, "it supports CDI, by annotation"),
        ("v1.20.2", containerd("1.7.24", cdi=True), True, "it supports CDI, by annotation"),
        ("v1.19.9", containerd("1.7.24", cdi=True), False, "the kubelet is older than 1.20"),
        ("v1.29.0", replace(CRI_O, cdi_dirs=("/etc/cdi",)), False, "in /etc/cdi, and cdi_dir is"),
        ("v1.29.0", replace(CRI_O, cdi_dirs=()), False, "in no directory, and cdi_dir is"),
        ("v1.28.9", CRI_O, False, "older than 1.29, and CDI names in annotations are untested"),
        ("v1.30.0", containerd("1.6.20~ds1", cdi=True), False, "unknown there before 1.7"),
        ("v1.30.0", RuntimeReport(name="cri-o", version="1.27.0"), False, "before 1.28"),
        (
            "v1.30.0",
            RuntimeReport(name="docker", version="27.0.1"),
            False,
            "CDI support is unknown",
        ),
        ("", RuntimeReport(name="", version=""), False, "the kubelet is older"),
    ],
)
def test_a_node_binds_late_where_it_is_proven_to_honour_cdi(
    kubelet: str, runtime: RuntimeReport, late: bool, why: str
) -> None:
    way = way_of(kubelet, runtime, cdi_dir="/run/cdi")

    assert way.late is late
    assert why in way.reason
    assert str(way).startswith("late: " if late else "lock: ")


@pytest.mark.parametrize(
    ("kubelet", "fields", "annotations"),
    [
        ("v1.31.2", ["hami.io/slice=n"], {}),
        ("v1.20.2", [], {"cdi.k8s.io/hami-slice": "hami.io/slice=n"}),
        ("", ["hami.io/slice=n"], {"cdi.k8s.io/hami-slice": "hami.io/slice=n"}),
    ],
)
def test_the_kubelet_gets_a_name_where_it_reads_it(
    kubelet: str, fields: list[str], annotations: dict[str, str]
) -> None:
    answer = late_answer("n", named_by(kubelet))

    assert (list(answer.cdi_devices), dict(answer.annotations)) == (fields, annotations)


def test_a_name_is_a_nonce_and_other_kinds_are_not_ours() -> None:
    [name] = late_answer("6f1d").cdi_devices

    assert (name, nonce_of(name)) == ("hami.io/slice=6f1d", "6f1d")
    assert nonce_of("nvidia.com/gpu=0") is None
    assert nonce_of("hami.io/slice") is None
