"""An unknown name is answered with the closest ones of the namespace."""

from __future__ import annotations

from hamictl.commands.answers import did_you_mean
from hamictl.commands.capacity import add_envelope


def test_the_closest_names_are_named_once_each() -> None:
    known = ["train-1", "train-1", "train-2", "web"]

    assert did_you_mean("trian-1", known) == "; did you mean train-1 or train-2?"
    assert did_you_mean("nothing-like-it", known) == ""


def test_what_fits_has_the_keys_of_every_list_beside_its_own() -> None:
    answer = {"count": 3, "more": False, "nodes": {"n2": 1, "n1": 2}}

    found = add_envelope(answer)

    assert {key: found[key] for key in answer} == answer
    assert found["kind"] == "FitList"
    assert found["items"] == [{"node": "n1", "count": 2}, {"node": "n2", "count": 1}]
    assert found["asOf"].endswith("+00:00")
