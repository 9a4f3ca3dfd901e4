"""The table of rules and reasons: every row is complete, and what is made of the rows agrees."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hamicommon.placement.rules import (
    NODE_REASONS,
    NOT_ASKED,
    OTHER,
    POD_REFUSED,
    REASON_LABELS,
    RULES,
    TERMS,
    Rule,
    reason_label,
    reason_term,
)

REFUSING = [rule for rule in Rule if rule not in (Rule.FITS, Rule.NO_CARD)]


@pytest.mark.parametrize("rule", REFUSING)
def test_every_rule_has_all_of_its_texts(rule: Rule) -> None:
    assert RULES[rule.row.number] is rule
    assert all((rule.reason, rule.row.group, rule.row.term, rule.row.help))
    assert rule.row.unit in ("", "MiB", "percent", "slots")
    assert rule.reason in REASON_LABELS


def test_rules_of_one_code_have_one_term() -> None:
    terms = defaultdict(set)
    for rule in REFUSING:
        terms[rule.reason].add(rule.row.term)

    assert [code for code, found in terms.items() if len(found) > 1] == []
    assert terms.keys().isdisjoint(NODE_REASONS)


@pytest.mark.parametrize(
    ("reason", "label", "term"),
    [
        ("CardInsufficientMemory", "CardInsufficientMemory", "memory"),
        ("node-agent silent", "node-agent silent", "silent agents"),
        (f"{POD_REFUSED}: no such amount", POD_REFUSED, f"{POD_REFUSED}: no such amount"),
        ("a vendor's own", OTHER, "a vendor's own"),
        ("", "", ""),
    ],
)
def test_a_reason_has_a_label_of_a_fixed_set_and_a_term(reason: str, label: str, term: str) -> None:
    assert reason_label(reason) == label
    assert reason_term(reason) == term


def test_a_pod_that_was_never_asked_about_has_a_term_and_no_label() -> None:
    assert NOT_ASKED in TERMS
    assert NOT_ASKED not in REASON_LABELS
