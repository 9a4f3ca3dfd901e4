"""`hamictl vendors`: the served resources, and the cluster's settings for them."""

from pathlib import Path

import yaml
from hamicommon.admission.marker import SLICE
from hamictl.__main__ import app
from typer.testing import CliRunner, Result


def vendors(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["vendors", *map(str, arguments)])


def test_the_table_shows_a_vendors_resources(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("hygon: {resourceCountName: example.com/dcu}")

    result = vendors("--device-config", config)

    assert result.exit_code == 0, result.output
    assert "DCU" in result.output
    assert "example.com/dcu" in result.output
    assert "NVIDIA" not in result.output


def test_ascend_is_shown_where_it_is_on() -> None:
    assert "huawei.com/" not in vendors("-o", "kube-scheduler").output
    assert "huawei.com/Ascend910A" in vendors("-o", "kube-scheduler", "--enable-ascend").output


def test_what_the_cluster_needs_is_yaml_to_paste() -> None:
    managed = yaml.safe_load(vendors("-o", "kube-scheduler").output)["managedResources"]
    (condition,) = yaml.safe_load(vendors("-o", "webhook").output)["matchConditions"]

    assert {"name": "amd.com/gpu", "ignoredByScheduler": True} in managed
    assert managed.pop() == {"name": SLICE, "ignoredByScheduler": True}
    assert all(item["name"] in condition["expression"] for item in managed)


def test_a_broken_configuration_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("hygon: {resourceCountNam: x}")

    result = vendors("--device-config", config)

    assert result.exit_code != 0
    assert "resourceCountNam" in result.output
    assert "Traceback" not in result.output
