"""Templates of `-o jsonpath=`, as kubectl reads them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.output.jsonpath import render
from hypothesis import given
from hypothesis import strategies as st

DOCUMENT = {
    "kind": "PodList",
    "items": [
        {"name": "a", "labels": {"app.io/x": "1"}, "memory_bytes": 5, "node": None},
        {"name": "b", "labels": {}, "ok": True},
    ],
}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{.kind}", "PodList"),
        ("{$.kind}", "PodList"),
        ("{kind}", "PodList"),
        ("{.items[*].name}", "a b"),
        ("{.items[0].name}/{.items[-1].name}", "a/b"),
        ("{.items[7].name}{.nothing.at.all}", ""),
        ("{.items[0].labels['app.io/x']}", "1"),
        ('{.items[0].labels["app.io/x"]}', "1"),
        ('{range .items[*]}{.name}{"\\t"}{.memory_bytes}{"\\n"}{end}', "a\t5\nb\t\n"),
        ("{range .items[*]}[{@.name}]{end}", "[a][b]"),
        ("{.items[0].node}", "null"),
        ("{.items[1].ok}", "true"),
        ("{'it is'} {.items[1].labels}", "it is {}"),
        ("{.items[0].labels.*}", "1"),
        ("plain", "plain"),
    ],
)
def test_a_template_is_filled_in(template: str, wanted: str) -> None:
    assert render(template, DOCUMENT) == wanted


@pytest.mark.parametrize(
    "template", ["{.items", "}", "{.items[x]}", "{range .items[*]}{.name}", "{end}", "{..name}"]
)
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest, match="jsonpath"):
        render(template, DOCUMENT)


@given(st.text(alphabet="{}.[]*'\"\\range end@$itmsx01-", max_size=40))
def test_any_text_is_a_template_or_a_sentence(template: str) -> None:
    with suppress(InvalidRequest):
        assert isinstance(render(template, DOCUMENT), str)
