"""KubeSchedulerConfiguration files."""

from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.kubescheduler.configuration import read_configuration

FULL = """
apiVersion: kubescheduler.config.k8s.io/v1beta1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /k}
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
profiles: [{schedulerName: hami-scheduler}, {schedulerName: other}]
extenders:
- urlPrefix: http://127.0.0.1:443
  filterVerb: filter
  bindVerb: bind
  weight: 1
  httpTimeout: 1m30s
  nodeCacheCapable: true
  managedResources:
  - {name: nvidia.com/gpu, ignoredByScheduler: true}
  - {name: nvidia.com/gpumem}
  somethingNew: 1
"""


def write_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_every_key_that_matters_is_read(tmp_path: Path) -> None:
    config = read_configuration(write_file(tmp_path, FULL))
    assert config.scheduler_names == {"hami-scheduler", "other"}
    assert config.client_connection.kubeconfig == "/k"
    assert config.pod_max_backoff_seconds == 1
    extender = config.extenders[0]
    assert extender.http_timeout == 90.0
    assert extender.node_cache_capable
    assert [one.ignored_by_scheduler for one in extender.managed_resources] == [True, False]


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2", "v1beta3"])
def test_what_is_not_set_is_kube_schedulers_default(tmp_path: Path, version: str) -> None:
    text = f"apiVersion: kubescheduler.config.k8s.io/{version}\nkind: KubeSchedulerConfiguration\n"
    config = read_configuration(write_file(tmp_path, text))
    assert config.scheduler_names == {"default-scheduler"}
    assert (config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds) == (1, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "kind must be KubeSchedulerConfiguration"),
        (FULL.replace("kubescheduler.config", "else"), "apiVersion .* must be"),
        (FULL.replace("1m30s", "soon"), "extenders.0.httpTimeout: .*'soon' is not a duration"),
        (FULL.replace("weight: 1", "weight: -1"), "extenders.0.weight"),
        (FULL.replace("podMaxBackoffSeconds: 1", "podMaxBackoffSeconds: 0"), "podMaxBackoff"),
        (FULL + FULL[FULL.index("- urlPrefix") :], "only one extender may have a bindVerb"),
        ("a: [", "config.yaml"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_configuration(write_file(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="absent"):
        read_configuration(tmp_path / "absent")
