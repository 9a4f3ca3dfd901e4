from pathlib import Path
from typing import Any

import orjson
import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.kubelet.containers.environment import StandInDriver, environment
from kubelocal.kubelet.devices.cdi import Edits, edits_of, names_of
from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceNode, Mount


def write(directory: Path, file: str, *devices: dict[str, Any], **more: Any) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/card", "devices": devices, **more}
    (directory / file).write_bytes(orjson.dumps(spec))


CARD = {
    "name": "one",
    "containerEdits": {
        "env": ["CARD=one", "EMPTY="],
        "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}],
        "deviceNodes": [{"path": "/dev/card0"}],
    },
}


def test_a_device_brings_its_own_edits_and_its_files(tmp_path: Path) -> None:
    write(tmp_path, "a.json", CARD, containerEdits={"env": ["ALL=1"]})

    assert edits_of(["example.com/card=one"], tmp_path) == Edits(
        envs=(("CARD", "one"), ("EMPTY", ""), ("ALL", "1")),
        mounts=(Mount(container_path="/c", host_path="/h", read_only=True),),
        nodes=(DeviceNode(container_path="/dev/card0", host_path="/dev/card0", permissions="rwm"),),
    )


def test_a_name_that_no_file_has_is_an_error_and_a_broken_file_hides_only_its_own(
    tmp_path: Path,
) -> None:
    write(tmp_path, "b.json", CARD)
    (tmp_path / "a.json").write_text("{")

    assert edits_of(["example.com/card=one"], tmp_path).envs
    with pytest.raises(InvalidRequest, match=r"unresolvable CDI devices example\.com/card=two"):
        edits_of(["example.com/card=two"], tmp_path)


def test_a_runtime_without_cdi_reports_nothing(tmp_path: Path) -> None:
    assert edits_of(["example.com/card=one"], None) == Edits()


def test_what_a_device_sets_the_container_cannot_change() -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {}}
    own = {"name": "main", "env": [{"name": "CARD", "value": "mine"}]}
    driver = StandInDriver(library_dir=Path("/lib"), config=None)

    env = environment(
        pod,
        own,
        AllocateAnswer(envs={"CARD": "answer"}),
        node="n",
        driver=driver,
        edits=Edits(envs=(("CARD", "device"),)),
    )

    assert env["CARD"] == "device"


def test_names_in_annotations_count_too_and_one_that_comes_twice_counts_once() -> None:
    answer = AllocateAnswer(
        raw=b"",
        cdi_devices=("a/b=1",),
        annotations={"cdi.k8s.io/x": "a/b=1,a/b=2", "other.io/x": "a/b=3"},
    )

    assert names_of(answer) == ("a/b=1", "a/b=2")
