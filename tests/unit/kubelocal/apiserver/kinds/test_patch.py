import copy
from typing import Any

import pytest
from hamicommon.k8s.types import Json
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.kinds.patch import merge_patch, strategic_merge


def pod(*containers: Json) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"containers": list(containers)}}


def merge(target: Json, patch: Json) -> Json:
    before = copy.deepcopy(target)
    result = strategic_merge(target, patch)
    assert target == before, "the target must not change"
    return result


def test_containers_merge_by_name_and_their_env_too() -> None:
    old = pod({"name": "x", "image": "1", "env": [{"name": "A", "value": "1"}]}, {"name": "y"})
    patch = {"spec": {"containers": [{"name": "x", "env": [{"name": "A", "value": "2"}]}]}}
    containers = merge(old, patch)["spec"]["containers"]
    assert containers == [
        {"name": "x", "image": "1", "env": [{"name": "A", "value": "2"}]},
        {"name": "y"},
    ]


def test_a_deleted_element_goes_and_the_others_stay() -> None:
    patch = {"spec": {"containers": [{"name": "x", "$patch": "delete"}]}}
    assert merge(pod({"name": "x"}, {"name": "y"}), patch) == pod({"name": "y"})


def test_a_replaced_list_holds_only_the_new_elements() -> None:
    patch = {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}
    assert merge(pod({"name": "x"}), patch) == pod({"name": "z"})


def test_the_asked_order_is_kept() -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "z"}, {"name": "x"}],
            "containers": [{"name": "z"}],
        }
    }
    assert merge(pod({"name": "x"}), patch) == pod({"name": "z"}, {"name": "x"})


def test_tolerations_have_no_key_and_are_replaced() -> None:
    old = {"spec": {"tolerations": [{"key": "a"}]}}
    assert merge(old, {"spec": {"tolerations": [{"key": "b"}]}}) == {
        "spec": {"tolerations": [{"key": "b"}]}
    }


def test_finalizers_are_a_set() -> None:
    old = {"metadata": {"finalizers": ["a", "b"]}}
    patch = {"metadata": {"finalizers": ["b", "c"]}}
    assert set(merge(old, patch)["metadata"]["finalizers"]) == {"a", "b", "c"}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert merge(old, patch)["metadata"]["finalizers"] == ["b"]


def test_retained_keys_drop_the_others() -> None:
    old = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    patch = {
        "spec": {
            "volumes": [
                {"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/"}}
            ]
        }
    }
    assert merge(old, patch) == {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}


def test_null_removes_a_field() -> None:
    assert merge(
        {"metadata": {"labels": {"a": "1", "b": "2"}}}, {"metadata": {"labels": {"a": None}}}
    ) == {"metadata": {"labels": {"b": "2"}}}


def test_an_element_without_its_key_is_refused() -> None:
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        merge(pod(), {"spec": {"containers": [{"image": "x"}]}})


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


@settings(max_examples=100)
@given(target=json_values, patch=json_values)
def test_a_merge_patch_applied_twice_is_applied_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@settings(max_examples=50)
@given(patch=json_values)
def test_a_merge_patch_of_nothing_is_the_patch_without_nulls(patch: Any) -> None:
    assert merge_patch(None, patch) == without_nulls(patch)
