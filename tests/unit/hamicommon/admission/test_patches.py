"""The patch is correct and small."""

import jsonpatch
from hamicommon.admission.patches import diff
from hypothesis import given, settings
from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("a/~", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("a/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.text("a/~", max_size=2), json_values, max_size=3)


@settings(max_examples=100)
@given(documents, documents)
def test_applying_the_patch_gives_the_other_document(before, after) -> None:
    assert jsonpatch.apply_patch(before, diff(before, after)) == after


def test_equal_documents_need_no_patch() -> None:
    assert diff({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []


def test_keys_are_escaped_and_appended_entries_are_added() -> None:
    assert diff({"a/b": {}, "l": [1]}, {"a/b": {"c~d": 1}, "l": [1, 2]}) == [
        {"op": "add", "path": "/a~1b/c~0d", "value": 1},
        {"op": "add", "path": "/l/-", "value": 2},
    ]


def test_a_number_and_a_boolean_differ() -> None:
    assert diff({"a": 1}, {"a": True}) == [{"op": "replace", "path": "/a", "value": True}]
