from fractions import Fraction

import pytest
from hamictl.apiserver import quantities
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1000000", "1M"),
        ("3000", "3k"),
        ("1.5k", "1500"),
        ("0", "0"),
        ("0Gi", "0"),
        ("1023Ki", "1023Ki"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("-1", "-1"),
        ("+5", "5"),
        ("100", "100"),
        ("1.5Gi", "1536Mi"),
        ("0.0000000001", "1n"),
    ],
)
def test_the_canonical_form_is_the_one_of_the_real_server(text: str, canonical: str) -> None:
    assert quantities.canonical(text) == canonical


@pytest.mark.parametrize("text", ["", "abc", "1x", "1KiB", "--1", "1.2.3", "1e", "Mi", " 1"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantit"):
        quantities.canonical(text)


@settings(max_examples=100)
@given(
    number=st.integers(min_value=-(10**15), max_value=10**15),
    suffix=st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]),
)
def test_the_canonical_form_keeps_the_value_and_is_stable(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    canonical = quantities.canonical(text)
    assert quantities.value(canonical) == quantities.value(text)
    assert quantities.canonical(canonical) == canonical


def test_values_are_exact() -> None:
    assert quantities.value("0.1") == Fraction(1, 10)
    assert quantities.value("1Ei") == 2**60
