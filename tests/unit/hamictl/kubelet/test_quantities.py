"""Kubernetes quantities."""

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.kubelet import quantities


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("2", 2, 2000),
        ("500m", 1, 500),
        ("1.5", 2, 1500),
        ("64Gi", 64 * 2**30, 64 * 2**30 * 1000),
        ("1k", 1000, 10**6),
        ("1e3", 1000, 10**6),
        ("1E", 10**18, 10**21),
        (3, 3, 3000),
        ("100n", 1, 1),
    ],
)
def test_quantities_round_up_to_whole_numbers(text: str | int, value: int, milli: int) -> None:
    assert (quantities.value(text), quantities.milli_value(text)) == (value, milli)


@pytest.mark.parametrize("text", ["", "abc", "1Q", "1 Gi", "--1"])
def test_what_is_not_a_quantity_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        quantities.value(text)
