"""Events can be made about objects of any name."""

from __future__ import annotations

import re

import pytest
from hamicommon.k8s.event_names import event_name

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("cut", ["a", "-", ".", "--", "-x", ".x"])
def test_an_object_with_the_longest_name_has_events(cut: str) -> None:
    involved = ("a" * (200 - len(cut)) + cut).ljust(253, "b")

    made = event_name(involved, "0" * 16)

    assert len(made) <= 253
    assert SUBDOMAIN.fullmatch(made)


def test_a_short_name_is_kept_whole() -> None:
    assert event_name("pod-1", "ab") == "pod-1.ab"
