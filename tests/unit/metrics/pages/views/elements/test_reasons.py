"""The terms that pages have for reasons."""

from __future__ import annotations

import pytest
from hami_metrics.pages.views.elements.reasons import reason_term


@pytest.mark.parametrize(
    ("code", "term"),
    [("CardInsufficientMemory", "memory"), ("a vendor's own", "a vendor's own")],
)
def test_a_reason_is_a_term_and_one_that_is_not_known_itself(code: str, term: str) -> None:
    assert reason_term(code) == term
