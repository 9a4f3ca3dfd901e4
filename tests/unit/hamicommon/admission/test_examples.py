"""Admission's answers to HAMi's example pods, compared with answers reviewed by eye.

The examples are no part of this project; `golden/` holds our answers to them, one file per example.
`pytest --update-golden` writes them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hamicommon import device_config
from hamicommon.admission.lint import Linter
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.vendors.registry import Vendors
from hamictl.manifests import read_manifest
from jsonpatch import apply_patch

HERE = Path(__file__)
GOLDEN = HERE.parent / "golden"
_SHARING = [parent / "shared" / "examples" / "hami" for parent in HERE.parents[5:]]
EXAMPLES = next((folder for folder in _SHARING if folder.is_dir()), None)

pytestmark = pytest.mark.skipif(
    EXAMPLES is None, reason="shared/examples/hami is not beside the checkout"
)


def examples() -> list[Path]:
    return [] if EXAMPLES is None else sorted(EXAMPLES.glob("*/**/*.yaml"))


@pytest.fixture(scope="module")
def rules() -> AdmissionRules:
    assert EXAMPLES is not None
    config = device_config.load(EXAMPLES / "device-config.yaml")
    vendors = Vendors.from_config(config, enable_ascend=True, enable_iluvatar=True)
    return AdmissionRules(vendors=vendors, scheduler_name="hami-scheduler")


def pods_of(path: Path) -> list[dict[str, Any]]:
    manifest = read_manifest(path.read_text(), source=path.name, namespace="default")
    return list(manifest.pods)


@pytest.mark.parametrize("path", examples(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_is_answered_as_it_was_reviewed(
    path: Path, rules: AdmissionRules, request: pytest.FixtureRequest
) -> None:
    assert EXAMPLES is not None
    linter = Linter(rules=rules)
    answers = [linter.answer(pod["metadata"]["name"], pod) for pod in pods_of(path)]
    golden = GOLDEN / path.relative_to(EXAMPLES).with_suffix(".json")
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n")

    assert answers, "the example holds no pod"
    assert answers == json.loads(golden.read_text())


@pytest.mark.parametrize("path", examples(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_is_patched_once_and_never_again(path: Path, rules: AdmissionRules) -> None:
    for pod in pods_of(path):
        first = mutate(pod, rules)
        after = apply_patch(pod, first.patch)

        assert mutate(after, rules).patch == []


def test_every_golden_file_has_its_example() -> None:
    assert EXAMPLES is not None
    wanted = {path.relative_to(EXAMPLES).with_suffix(".json") for path in examples()}

    assert {path.relative_to(GOLDEN) for path in GOLDEN.rglob("*.json")} == wanted
