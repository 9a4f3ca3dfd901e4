"""Limits become a claim, or stay limits with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionRules
from hamicommon.domain.requests import Role
from hamicommon.dra.claims import allocated_devices, container_claims
from hamicommon.dra.conversion import ENTRY, is_converted
from hamicommon.dra.shapes import shape_from
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.pod_annotations import FRONT_END
from hamicommon.k8s.types import Json
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.admission.pods import CORES, GPU, apply_verdict, container, pod, rules
from tests.unit.hamicommon.admission.pods import MEM as MEMORY
from tests.unit.hamicommon.admission.pods import PCT as PERCENT

ON = replace(rules(), claims=True)
ABOUT = AdmissionCircumstances(namespace="team", traceparent="00-a-b-01", username="alice")


def asking(
    *containers: Json, init: tuple[Json, ...] = (), annotations: Mapping[str, str] | None = None
) -> Json:
    """A pod that wants a claim."""
    made = pod(*containers)
    for number, each in enumerate((*init, *containers)):
        each["name"] = f"c{number}"
    if init:
        made["spec"]["initContainers"] = list(init)
    made["metadata"]["annotations"] = {FRONT_END.name: "dra", **(annotations or {})}
    return made


def convert_pod(given_: Json) -> Json:
    """The pod after admission, which has no limits of ours any more."""
    verdict = mutate(deepcopy(given_), ON, ABOUT)
    assert verdict.allowed, verdict.message
    assert not [text for text in verdict.warnings if FRONT_END.name in text]
    after = apply_verdict(given_, verdict)
    assert is_converted(after)
    assert "nvidia.com" not in json.dumps([each.get("resources") for each in containers_of(after)])
    return after


def containers_of(found: Json) -> list[Json]:
    return [*(found["spec"].get("initContainers") or ()), *found["spec"]["containers"]]


def requests_of(found: Json) -> list[str | None]:
    """By container: the request that it names."""
    named = [(each.get("resources") or {}).get("claims") or [{}] for each in containers_of(found)]
    assert all(each[-1].get("name", ENTRY) == ENTRY for each in named)
    return [each[-1].get("request") for each in named]


def slices_of(found: Json) -> list[tuple[int, int, int, int]]:
    shape = shape_from(found["metadata"]["annotations"][CLAIM_SHAPE])
    return [(s.count, s.memory_mib, s.memory_percent, s.core_percent) for s in shape.slices]


def test_amounts_of_limits_become_a_claim_of_a_shared_template() -> None:
    after = convert_pod(asking(container({GPU: 1, MEMORY: 4096, CORES: 30, "cpu": 2})))

    [entry] = after["spec"]["resourceClaims"]
    shape = shape_from(after["metadata"]["annotations"][CLAIM_SHAPE])
    assert entry == {"name": ENTRY, "resourceClaimTemplateName": shape.template_name}
    assert slices_of(after) == [(1, 4096, 0, 30)]
    [only] = after["spec"]["containers"]
    assert only["resources"] == {
        "limits": {"cpu": 2},
        "claims": [{"name": ENTRY, "request": "gpu-0"}],
    }
    assert "schedulerName" not in after["spec"]
    stamps = after["metadata"]["annotations"]
    assert stamps["hami.io/created-by"] == "alice"
    assert stamps["hami.io/traceparent"] == "00-a-b-01"


def test_the_same_amounts_are_the_same_template_and_others_another() -> None:
    names = [
        convert_pod(asking(container({GPU: 1, MEMORY: memory})))["spec"]["resourceClaims"][0][
            "resourceClaimTemplateName"
        ]
        for memory in (4096, "4096", 4097)
    ]
    assert names[0] == names[1] != names[2]


def test_whole_cards_and_percentages_are_parts_of_whatever_card_it_is() -> None:
    assert slices_of(convert_pod(asking(container({GPU: 2})))) == [(2, 0, 100, 100)]
    found = convert_pod(asking(container({GPU: 1, PERCENT: 25})))
    assert slices_of(found) == [(1, 0, 25, 0)]


def test_an_amount_beside_a_percentage_is_taken() -> None:
    found = convert_pod(asking(container({GPU: 1, MEMORY: 4096, PERCENT: 25})))
    assert slices_of(found) == [(1, 4096, 0, 0)]


def test_selections_by_annotations_are_kept() -> None:
    chosen = {
        "nvidia.com/use-gputype": "A100,H100",
        "nvidia.com/nouse-gputype": "MIG",
        "nvidia.com/use-gpuuuid": "GPU-2",
        "nvidia.com/nouse-gpuuuid": "GPU-1",
    }
    after = convert_pod(asking(container({GPU: 1, MEMORY: 1}), annotations=chosen))

    shape = shape_from(after["metadata"]["annotations"][CLAIM_SHAPE])
    assert (shape.use_types, shape.avoid_types) == (("A100", "H100"), ("MIG",))
    assert (shape.use_uuids, shape.avoid_uuids) == (("GPU-2",), ("GPU-1",))


def sharing(*init: Json, app: Json) -> list[str | None]:
    return requests_of(convert_pod(asking(app, init=init)))


def test_an_init_container_takes_the_slices_of_the_app_container_of_its_shape() -> None:
    small, large = {GPU: 1, MEMORY: 100}, {GPU: 1, MEMORY: 200}
    assert sharing(container(small), app=container(small)) == ["gpu-0", "gpu-0"]
    assert sharing(container(large), app=container(small)) == ["gpu-1", "gpu-0"]
    assert sharing(container(large), container(large), app=container()) == ["gpu-0", "gpu-0", None]


def test_what_runs_side_by_side_never_shares_a_request() -> None:
    small = {GPU: 1, MEMORY: 100}
    sidecar = container(small) | {"restartPolicy": "Always"}
    # The init container behind the sidecar runs beside it.
    found = sharing(sidecar, container(small), app=container(small))
    assert found == ["gpu-0", "gpu-1", "gpu-1"]
    two = convert_pod(asking(container(small), container(small)))
    assert requests_of(two) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("hami.io/gpu-scheduler-policy", "spread"),
        ("hami.io/node-scheduler-policy", "spread"),
        ("nvidia.com/numa-bind", "true"),
        ("nvidia.com/vgpu-mode", "mig"),
    ],
)
def test_what_a_claim_cannot_state_stays_limits_with_the_reason(
    annotation: str, value: str
) -> None:
    given_ = asking(container({GPU: 1, MEMORY: 1}), annotations={annotation: value})

    stays(given_, f"can't express the annotation {annotation}")


def stays(given_: Json, reason: str, rules_: AdmissionRules = ON) -> None:
    before = deepcopy(given_)
    verdict = mutate(given_, rules_, ABOUT)
    assert verdict.allowed
    [warning] = [text for text in verdict.warnings if FRONT_END.name in text]
    assert reason in warning
    assert "keeps its limits" in warning
    after = apply_verdict(before, verdict)
    assert "resourceClaims" not in after["spec"]
    assert after["spec"]["schedulerName"] == "hami-scheduler"
    assert GPU in after["spec"]["containers"][0]["resources"]["limits"]


def test_a_pod_of_our_scheduler_keeps_an_amount_of_nothing_by_which_we_bind_it() -> None:
    given_ = asking(container({GPU: 2, MEMORY: 1}), container())
    given_["spec"]["schedulerName"] = "hami-scheduler"
    after = apply_verdict(given_, mutate(deepcopy(given_), ON, ABOUT))
    assert is_converted(after)
    assert after["spec"]["schedulerName"] == "hami-scheduler"
    first, second = (each.get("resources") or {} for each in containers_of(after))
    assert (first["limits"], second.get("limits", {})) == ({GPU: "0"}, {})
    assert apply_verdict(after, mutate(deepcopy(after), ON, ABOUT)) == after


def test_limits_stay_where_claims_are_off_or_the_value_is_unknown() -> None:
    stays(asking(container({GPU: 1})), "off in this installation", rules())
    stays(
        asking(container({GPU: 1}), annotations={FRONT_END.name: "claims"}),
        "expected limits or dra",
    )


def test_more_cards_than_a_claim_may_have_stay_limits() -> None:
    stays(asking(container({GPU: 33, MEMORY: 1})), "at most 32 cards")


def test_a_claim_of_our_name_is_not_touched() -> None:
    given_ = asking(container({GPU: 1, MEMORY: 1}))
    given_["spec"]["resourceClaims"] = [{"name": ENTRY, "resourceClaimName": "mine"}]
    before = deepcopy(given_)
    verdict = mutate(given_, ON, ABOUT)
    assert any("a claim with the name" in text for text in verdict.warnings)
    assert (
        apply_verdict(before, verdict)["spec"]["resourceClaims"] == before["spec"]["resourceClaims"]
    )


def test_a_pod_that_asks_for_nothing_gets_no_claim_and_its_own_shape_is_dropped() -> None:
    given_ = asking(container(), annotations={CLAIM_SHAPE: "forged"})
    after = apply_verdict(given_, mutate(deepcopy(given_), ON, ABOUT))
    assert "resourceClaims" not in after["spec"]
    assert CLAIM_SHAPE not in after["metadata"]["annotations"]


def test_a_privileged_container_beside_a_claim_is_refused_at_both_looks() -> None:
    given_ = asking(container({GPU: 1, MEMORY: 1}))
    given_["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert mutate(deepcopy(given_), ON, ABOUT).reason == "privileged"
    after = convert_pod(asking(container({GPU: 1, MEMORY: 1})))
    after["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert mutate(after, ON, ABOUT).reason == "privileged"


ASKED = st.fixed_dictionaries(
    {},
    optional={
        GPU: st.integers(0, 3),
        MEMORY: st.integers(0, 5000),
        PERCENT: st.integers(0, 100),
        CORES: st.integers(0, 100),
    },
)
ROLES: st.SearchStrategy[tuple[Role | None, dict[str, int]]] = st.tuples(
    st.sampled_from(["init", "sidecar", "app"]), ASKED
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROLES, max_size=5), ASKED)
def test_any_pod_is_converted_once_and_no_two_side_by_side_share(
    parts: list[tuple[str, dict[str, int]]], last: dict[str, int]
) -> None:
    init = tuple(
        container(asked) | ({"restartPolicy": "Always"} if role == "sidecar" else {})
        for role, asked in parts
        if role != "app"
    )
    apps = [container(asked) for role, asked in parts if role == "app"]
    given_ = asking(*apps, container(last), init=init)
    verdict = mutate(deepcopy(given_), ON, ABOUT)
    after = apply_verdict(given_, verdict)

    assert mutate(deepcopy(after), ON, ABOUT).patch == [] or not is_converted(after)
    if not is_converted(after):
        return
    slices = slices_of(after)
    claim = make_allocated_claim(after, len(slices))
    found = container_claims(after, {ENTRY: allocated_devices(claim, "pod")})  # type: ignore[arg-type]  # a uid
    # Every request is some container's, and none of them is refused.
    named = [name for name in requests_of(after) if name]
    assert set(named) == {f"gpu-{number}" for number in range(len(slices))}
    assert [bool(each.devices) for each in found] == [
        name is not None for name in requests_of(after)
    ]


def make_allocated_claim(after: Json, count: int) -> Json:
    """The claim that kube-scheduler would have written."""
    results = [
        {
            "request": f"gpu-{number}",
            "driver": "gpu.hami.io",
            "pool": "n",
            "device": "card",
            "shareID": str(number),
            "consumedCapacity": {"memory": "1Mi"},
        }
        for number in range(count)
    ]
    return {
        "metadata": {"namespace": "team", "name": "c", "uid": "c"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod"}],
        },
    }
