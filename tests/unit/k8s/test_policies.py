"""The admission policies name the keys that the code writes, and leave users theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.admission.registration import IGNORE_LABEL
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import FRONT_END
from hamicommon.vendors.annotation_table import scheduler_owned, user_annotations
from hamicommon.vendors.registry import Vendors

BASE = Path(__file__).parents[3] / "k8s" / "base"
VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def policies() -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]
        for each in yaml.safe_load_all((BASE / "policies.yaml").read_text())
        if each["kind"] == "ValidatingAdmissionPolicy"
    }


def variable(policy: str, name: str) -> str:
    [found] = [v["expression"] for v in policies()[policy]["variables"] if v["name"] == name]
    return str(found)


def patterns(text: str) -> list[re.Pattern[str]]:
    return [re.compile(found) for found in re.findall(r"matches\('([^']+)'\)", text)]


USERS, VENDORS_OWN = patterns(variable("hami-pod-annotations", "owned"))


def is_owned(key: str) -> bool:
    """Return whether the policy protects the key on a pod that the scheduler placed."""
    if key.startswith("hami.io/"):
        return not USERS.search(key)
    return bool(VENDORS_OWN.search(key))


@pytest.mark.parametrize("key", sorted(scheduler_owned(VENDORS)))
def test_what_the_scheduler_writes_on_pods_is_kept_from_others(key: str) -> None:
    assert is_owned(key)


# The front end is fixed at the pod's creation.
@pytest.mark.parametrize(
    "key",
    [row.name for row in user_annotations(VENDORS) if row is not FRONT_END] + ["hami.io/max-x"],
)
def test_what_users_choose_cards_with_stays_theirs(key: str) -> None:
    assert not is_owned(key)


@pytest.mark.parametrize(
    "key",
    [
        "kubectl.kubernetes.io/last-applied-configuration",
        "example.com/hami.io/grant",
        "predicate-times",
        "my-assigned-containers",
        "huawei.com/vnpu-mode",
    ],
)
def test_other_keys_are_nobodys_business(key: str) -> None:
    assert not is_owned(key)


def test_an_agent_may_write_what_it_writes_on_its_node() -> None:
    [found] = [
        rule["expression"]
        for rule in policies()["hami-node-agent-nodes"]["validations"]
        if "variables.changed.all" in rule["expression"]
    ]

    written = {keys.BINDING, keys.AGENT, keys.NVIDIA_REGISTER, keys.NVIDIA_PAIR_SCORES}
    assert set(re.findall(r"'(hami\.io/[^']+)'", found)) == written


def test_the_scheduler_may_write_locks_and_handshakes_on_nodes_and_not_cards() -> None:
    [rule, _] = policies()["hami-scheduler-nodes"]["validations"]
    [pattern] = patterns(rule["expression"])

    for vendor in VENDORS:
        for key in filter(None, (vendor.keys.lock, vendor.keys.handshake)):
            assert pattern.search(key), key
        for key in filter(None, (vendor.keys.register, vendor.keys.pair_scores)):
            assert not pattern.search(key), key
    assert pattern.search(keys.NODE_LOCK)
    assert not pattern.search(keys.AGENT)
    assert not pattern.search(keys.DEVICE_CORDON)


def test_the_labels_that_a_namespace_gives_away_are_guarded() -> None:
    guarded = variable("hami-namespace-labels", "changed")
    labels = {IGNORE_LABEL, "hami.io/metrics", "hami.io/operators"}

    [prefix] = set(re.findall(r"startsWith\('([^']+)'\)", guarded))
    assert all(label.startswith(prefix) for label in labels)
    manifests = (BASE / "network-policies.yaml").read_text()
    assert set(re.findall(r"hami\.io/[a-z]+(?=: enabled)", manifests)) <= labels


def test_every_policy_is_bound_and_denies_when_it_can_not_be_asked() -> None:
    documents = list(yaml.safe_load_all((BASE / "policies.yaml").read_text()))
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in documents
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }

    assert bound == {name: ["Deny"] for name in policies()}
    assert {spec["failurePolicy"] for spec in policies().values()} == {"Fail"}
