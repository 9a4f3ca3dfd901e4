"""Wrong values of the Helm chart: each is refused in one sentence with its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.k8s.chart.rendered import CHART, HELM, Json, helm

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"scheduler": {"replica": 3}}, "scheduler: Additional property replica is not allowed"),
        ({"scheduler": {"replicas": 0}}, "scheduler.replicas: Must be greater than or equal to 1"),
        (
            {"scheduler": {"defaultSchedulerPolicy": {"nodeSchedulerPolicy": "pack"}}},
            'nodeSchedulerPolicy must be one of the following: "binpack", "spread"',
        ),
        (
            {"scheduler": {"scorePodsWithoutCards": "yes"}},
            "scheduler.scorePodsWithoutCards: Invalid type. Expected: boolean, given: string",
        ),
        (
            {"scheduler": {"kubeScheduler": {"percentageOfNodesToScore": 101}}},
            "percentageOfNodesToScore: Must be less than or equal to 100",
        ),
        ({"postgres": {"storage": "much"}}, "postgres.storage: Does not match pattern"),
        ({"scheduler": {"replicas": "two"}}, "scheduler.replicas: Invalid type. Expected: integer"),
        (
            {"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "best"}}},
            "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy: Does not match pattern",
        ),
        (
            {"scheduler": {"image": {"pullPolicy": "Sometimes"}}},
            'pullPolicy must be one of the following: "Always", "IfNotPresent", "Never"',
        ),
        ({"backup": {"schedule": "nightly"}}, "backup.schedule: Does not match pattern"),
        (
            {"global": {"imageRegistry": "https://registry.example"}},
            "global.imageRegistry: Does not match pattern",
        ),
        (
            {"global": {"imageRegistry": "registry.example/gpu/"}},
            "global.imageRegistry: Does not match pattern",
        ),
        (
            {"nats": {"image": {"digest": "sha256:12"}}},
            "nats.image.digest: Does not match pattern",
        ),
        ({"global": {"imageTag": "a tag"}}, "global.imageTag: Does not match pattern"),
        ({"global": {"imagePullSecrets": [{"name": "one"}]}}, "imagePullSecrets.0: Invalid type"),
        ({"schedulerName": "Hami Scheduler"}, "schedulerName: Does not match pattern"),
        ({"postgres": {"storage": None}}, "postgres: storage is required"),
        ({"global": None}, "(root): global is required"),
        ({"resourceName": "gpu"}, "resourceName: Does not match pattern"),
        (
            {"scheduler": {"resources": {"limits": {"memory": "1 GB"}}}},
            "scheduler.resources.limits.memory: Does not match pattern",
        ),
        (
            {"scheduler": {"extraEnvs": {"HAMI-X": "1"}}},
            'scheduler.extraEnvs: Property name of "HAMI-X" does not match',
        ),
        (
            {"scheduler": {"nodeSelector": {"gpu": True}}},
            "scheduler.nodeSelector.gpu: Invalid type. Expected: string, given: boolean",
        ),
        (
            {"devicePlugin": {"tolerations": [{"keys": "gpu"}]}},
            "devicePlugin.tolerations.0: Additional property keys is not allowed",
        ),
        (
            {"devicePlugin": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "half"}}}},
            "rollingUpdate.maxUnavailable: Does not match pattern",
        ),
        (
            {"devicePlugin": {"nodeConfiguration": {"config": "{"}}},
            "devicePlugin.nodeConfiguration.config: not JSON",
        ),
        ({"nats": {"url": "hami-nats:4222"}}, "nats.url: Does not match pattern"),
        ({"nats": {"enabled": False}}, "nats.url: with nats.enabled=false it names the servers"),
        (
            {"device-config": {"content": "nvidia: ["}},
            "device-config.content: not the YAML of a device-config",
        ),
    ],
    ids=[
        "typo",
        "replicas",
        "policy",
        "scores",
        "nodes",
        "storage",
        "type",
        "card-policy",
        "pull-policy",
        "schedule",
        "registry-with-scheme",
        "registry-with-slash",
        "digest",
        "tag",
        "pull-secrets",
        "scheduler-name",
        "no-value",
        "no-values",
        "resource-name",
        "quantity",
        "variable",
        "node-selector",
        "toleration",
        "update-strategy",
        "node-configuration",
        "nats-url",
        "nats",
        "device-config",
    ],
)
def test_a_wrong_value_is_one_sentence(tmp_path: Path, values: Json, sentence: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))

    done = helm("template", "x", str(CHART), "-f", str(file))

    assert done.returncode != 0
    assert sentence in done.stderr


WRONG = {"string": 7, "integer": "many", "number": "much", "boolean": "maybe", "array": "one"}
"""By what a value is: one of another type."""


def of_another_type(schema: Json) -> tuple[Json, list[str]]:
    """Values of which each is wrong, and their paths; a mapping of any keys is a text."""
    paths: list[str] = []

    def wrong(described: Json, path: str) -> object:
        while "$ref" in described:
            described = schema["definitions"][described["$ref"].rpartition("/")[2]]
        if "properties" in described:
            return all_wrong(described, path)
        paths.append(path)
        kind = described.get("type", "string")
        return WRONG.get(kind[0] if isinstance(kind, list) else kind, "text")

    def all_wrong(described: Json, path: str) -> Json:
        return {
            name: wrong(each, f"{path}.{name}".lstrip("."))
            for name, each in described["properties"].items()
        }

    return all_wrong(schema, ""), paths


def test_every_value_of_another_type_is_one_line_with_its_name(tmp_path: Path) -> None:
    values, paths = of_another_type(json.loads((CHART / "values.schema.json").read_text()))
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))

    done = helm("template", "x", str(CHART), "-f", str(file))

    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    named = [line.removeprefix("- ").partition(": ")[0] for line in lines]
    assert set(named) == set(paths)
    assert len(paths) > 90


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(described: Json, held: object, path: str) -> None:
        if isinstance(held, dict) and "properties" in described:
            extra = {"registry", "pullPolicy", "digest"} if path.endswith(".image") else set()
            assert described["properties"].keys() - extra == held.keys(), path
            for key, value in held.items():
                check(described["properties"][key], value, f"{path}.{key}")

    check(schema, values, "")
