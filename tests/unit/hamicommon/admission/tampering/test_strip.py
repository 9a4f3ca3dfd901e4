"""Stripping of tampering: a pod passes without it, and with everything else."""

from copy import deepcopy
from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import TamperingPolicy
from jsonpatch import apply_patch

from tests.unit.hamicommon.admission.tampering.pods import (
    SLICE,
    UNDOING,
    adds,
    env,
    pod,
    rules,
)

STRIPPING = TamperingPolicy(mode="strip")


@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_where_it_is_stripped_the_pod_passes_without_it(undoing: dict[str, Any]) -> None:
    given_ = pod("initContainers", **undoing)
    untouched = deepcopy(given_)

    verdict = mutate(given_, rules(STRIPPING))

    assert verdict.allowed
    assert given_ == untouched
    assert verdict.warnings[0].startswith("removed: container 'other': ")
    assert verdict.audit["tampering"].startswith("stripped: ")
    after = apply_patch(deepcopy(given_), verdict.patch)
    again = mutate(after, rules())
    assert (again.allowed, again.patch) == (True, [])
    # Nothing else has changed.
    assert after["spec"]["containers"][0] == given_["spec"]["containers"][0]
    assert after["spec"]["initContainers"][0]["name"] == "other"


def test_what_is_stripped_leaves_the_rest_of_its_list() -> None:
    kept = [{"name": "A", "value": "b"}, {"name": "LD_PRELOAD", "value": "libjemalloc.so"}]
    mounts = [{"name": "w", "mountPath": "/data"}, {"name": "v", "mountPath": "/etc"}]
    given_ = pod(
        env=[kept[0], *env("LD_AUDIT", "x")["env"], kept[1]],
        volumeMounts=mounts,
        spec={"hostPID": True},
        **adds("SYS_ADMIN", "IPC_LOCK"),
    )

    after = apply_patch(deepcopy(given_), mutate(given_, rules(STRIPPING)).patch)

    other = after["spec"]["containers"][1]
    assert other["env"] == kept
    assert other["volumeMounts"] == mounts[:1]
    assert other["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "hostPID" not in after["spec"]


def test_a_container_without_a_card_is_shown_none_and_one_with_cards_its_own() -> None:
    """An image may have the variable itself: to remove ours would show that one's cards."""
    limits = {"limits": SLICE}
    given_ = pod(**env("NVIDIA_VISIBLE_DEVICES", "all"))
    given_["spec"]["containers"][0] |= env("NVIDIA_VISIBLE_DEVICES", "all") | {"resources": limits}

    after = apply_patch(deepcopy(given_), mutate(given_, rules(STRIPPING)).patch)

    main, other = after["spec"]["containers"]
    assert "env" not in main
    assert other["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_a_priority_is_stripped_to_everybodys() -> None:
    given_ = pod(limits={**SLICE, "nvidia.com/priority": 0})

    verdict = mutate(given_, rules(STRIPPING))

    after = apply_patch(deepcopy(given_), verdict.patch)
    assert after["spec"]["containers"][0]["env"] == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]
    assert mutate(after, rules(STRIPPING)).patch == []


def test_a_pod_with_more_findings_than_are_looked_for_is_refused_in_place_of_stripped() -> None:
    many = [{"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "1g"} for n in range(300)]

    verdict = mutate(pod(env=many), rules(STRIPPING))

    assert (verdict.allowed, verdict.reason) == (False, "tampering")
    assert "; and at least 254 more" in verdict.message
