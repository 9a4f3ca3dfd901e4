import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubelocal.apiserver.schema import fields

from tests.waiting import PATIENCE_S


def test_the_committed_field_table_is_that_of_the_models() -> None:
    script = Path(__file__).parents[5] / "scripts" / "kubernetes-schema"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


def test_unknown_fields_nulls_and_empty_lists_are_dropped() -> None:
    body = {
        "metadata": {"name": "a", "labels": {}, "annotations": None},
        "spec": {"containers": [{"name": "c", "bogus": 1}], "volumes": []},
        "extra": 1,
    }
    kept, unknown = fields.clean("V1Pod", body)
    assert kept == {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
    assert sorted(unknown) == ["extra", "spec.containers[0].bogus"]


@pytest.mark.parametrize(
    ("definition", "body", "text"),
    [
        ("V1Pod", {"spec": {"nodeName": 3}}, "number into Go struct field spec.nodeName"),
        ("V1Pod", {"spec": {"containers": {}}}, "spec.containers"),
        ("V1Pod", {"spec": []}, "array into Go struct field spec"),
        ("V1Pod", {"spec": {"hostNetwork": "yes"}}, "type bool"),
        ("V1Pod", {"spec": {"priority": True}}, "type int64"),
        ("V1ConfigMap", {"data": {"a": 1}}, "data[a]"),
        ("V1Secret", {"data": {"a": "***"}}, "illegal base64 data"),
        ("V1Lease", {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}, "parsing time"),
        ("V1Pod", {"metadata": {"creationTimestamp": "yesterday"}}, "parsing time"),
        ("V1ResourceQuota", {"spec": {"hard": {"pods": "many"}}}, "spec.hard[pods]"),
    ],
)
def test_wrong_types_name_the_field(definition: str, body: dict[str, Any], text: str) -> None:
    with pytest.raises(fields.Unreadable) as caught:
        fields.clean(definition, body)
    assert text in str(caught.value)


def test_times_are_written_in_utc_seconds_and_amounts_in_canonical_form() -> None:
    body = {
        "metadata": {"creationTimestamp": "2026-01-01T02:00:00.123+02:00"},
        "spec": {"hard": {"cpu": 0.5, "memory": "1024Mi"}},
    }
    kept, _ = fields.clean("V1ResourceQuota", body)
    assert kept["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert kept["spec"]["hard"] == {"cpu": "500m", "memory": "1Gi"}
