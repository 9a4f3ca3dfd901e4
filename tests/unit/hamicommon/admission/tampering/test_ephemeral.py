"""Ephemeral containers (`kubectl debug`): judged when they are added, and only those."""

from copy import deepcopy
from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult, AdmissionRules
from jsonpatch import apply_patch

from tests.unit.hamicommon.admission.tampering.pods import UNDOING, env, mount, pod, rules

PRIVILEGED = {"securityContext": {"privileged": True}}


def add_container(
    container: dict[str, Any],
    *,
    to: dict[str, Any] | None = None,
    installed: AdmissionRules | None = None,
) -> tuple[dict[str, Any], AdmissionResult]:
    """The pod with the container, and the verdict on adding it."""
    before = to or pod()
    after = deepcopy(before)
    listed = after["spec"].setdefault("ephemeralContainers", [])
    listed.append({"name": "debugger", "image": "x", **container})
    about = AdmissionCircumstances(namespace="team", before=before)
    return after, mutate(after, installed or rules(), about)


@pytest.mark.parametrize("undoing", [*UNDOING, PRIVILEGED], ids=str)
def test_beside_a_slice_it_may_not_undo_it(undoing: dict[str, Any]) -> None:
    _, verdict = add_container(undoing)

    assert (verdict.allowed, verdict.code, verdict.reason) == (False, 403, "tampering")
    assert "debugger" in verdict.message


def test_one_that_undoes_nothing_is_added_as_it_is() -> None:
    _, verdict = add_container({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}})

    assert (verdict.allowed, verdict.patch) == (True, [])


def test_in_a_pod_without_a_card_it_may_not_show_itself_cards() -> None:
    plain = pod(limits={})

    assert not add_container(env("NVIDIA_VISIBLE_DEVICES", "all"), to=plain)[1].allowed
    assert add_container(env("CUDA_DISABLE_CONTROL", "true"), to=plain)[1].allowed
    assert add_container(PRIVILEGED, to=plain)[1].allowed


def test_one_that_is_there_already_is_not_judged_again() -> None:
    """An existing ephemeral container is immutable, and a patch of it would be refused."""
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    before, _ = add_container({**env("LD_AUDIT", "x"), "name": "older"}, to=pod())

    after, verdict = add_container(
        {"name": "debugger"}, to=before, installed=rules(overwrite_env=True)
    )

    assert verdict.allowed
    older, newer = apply_patch(deepcopy(after), verdict.patch)["spec"]["ephemeralContainers"]
    assert older == before["spec"]["ephemeralContainers"][0]
    assert newer["env"] == [hidden]


def test_it_is_stripped_where_pods_are() -> None:
    undoing = {**env("LD_AUDIT", "x"), **mount("/etc/hami")}
    after, verdict = add_container(undoing, installed=rules(TamperingPolicy(mode="strip")))

    stripped = apply_patch(deepcopy(after), verdict.patch)
    assert stripped["spec"]["ephemeralContainers"] == [{"name": "debugger", "image": "x"}]
    assert all(step["path"].startswith("/spec/ephemeralContainers/0") for step in verdict.patch)


@pytest.mark.parametrize(
    "policy",
    [TamperingPolicy(mode="allow"), TamperingPolicy(trusted_namespaces=frozenset({"team"}))],
)
def test_an_operator_may_permit_it(policy: TamperingPolicy) -> None:
    _, verdict = add_container(PRIVILEGED, installed=rules(policy))

    assert (verdict.allowed, verdict.patch) == (True, [])


@pytest.mark.parametrize("before", [{}, {"spec": None}, {"spec": {"ephemeralContainers": "x"}}])
def test_an_old_pod_of_any_shape_counts_as_one_without_them(before: dict[str, Any]) -> None:
    after, _ = add_container(PRIVILEGED)

    verdict = mutate(after, rules(), AdmissionCircumstances(before=before))

    assert not verdict.allowed


def test_a_misshapen_pod_is_refused_in_one_sentence() -> None:
    after = pod(spec={"ephemeralContainers": [5]})

    verdict = mutate(after, rules(), AdmissionCircumstances(before={}))

    assert (verdict.code, verdict.reason) == (400, "no-pod")


# --- static pods ----------------------------------------------------------------------------------


def test_what_a_kubelet_shows_of_a_static_pod_is_let_be() -> None:
    mirror = pod(spec={"nodeName": "n"}, **env("NVIDIA_VISIBLE_DEVICES", "all"))
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}

    by_node = mutate(mirror, rules(), AdmissionCircumstances(by_node=True))
    by_user = mutate(mirror, rules())

    assert (by_node.allowed, by_node.reason, by_node.patch) == (True, "mirror-pod", [])
    assert not by_user.allowed
    del mirror["metadata"]["annotations"]
    assert not mutate(mirror, rules(), AdmissionCircumstances(by_node=True)).allowed
