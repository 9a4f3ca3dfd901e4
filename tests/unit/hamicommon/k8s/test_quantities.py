"""Quantities are read as Kubernetes reads them: what counts is how the number is written."""

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil, parse_int
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0", 0),
        ("1", 1),
        (3, 3),
        ("007", 7),
        ("+5", 5),
        ("-5", -5),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("10.5k", 10500),
        ("16Gi", 17179869184),
        ("4Ki", 4096),
        ("0Gi", 0),
        (" 2 ", 2),
        ("5.", 5),
        ("9223372036854775807", None),
        ("999999999999999999", 999999999999999999),
        ("16.0Gi", None),
        ("1.0", None),
        ("1.0k", 1000),
        ("0.5", None),
        (".5", None),
        (1.5, None),
        ("1000m", None),
        ("1e-3", None),
        ("100Ti", None),
        ("1Ei", None),
        ("10E", None),
        ("1e99", None),
        ("0e99", 0),
    ],
)
def test_an_integer_is_what_as_int64_yields(written, value) -> None:
    assert parse_int(written) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("1500m", 2),
        ("-1500m", -2),
        ("16.0Gi", 17179869184),
        ("0.1", 1),
        ("1n", 1),
        ("100Ti", 109951162777600),
        ("1e30", 2**63 - 1),
        ("1Ei", 2**60),
    ],
)
def test_a_fraction_is_rounded_away_from_zero(written, value) -> None:
    assert parse_ceil(written) == value


@pytest.mark.parametrize(
    "written",
    ["", " ", "abc", "1x", "1 Gi", "--1", "1.2.3", "1ki", "Gi", ".", "1e", "1e1.5", None, True, [],
     "\u0661"],
)  # fmt: skip
def test_garbage_is_refused_with_the_value(written) -> None:
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        parse_int(written)
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        parse_ceil(written)


def test_an_absurd_exponent_is_refused_without_computing_it() -> None:
    for absurd in ("1e999999999", "9" * 5000):
        with pytest.raises(InvalidRequest, match="out of range"):
            parse_ceil(absurd)
    assert parse_int("1e999999999") is None


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_every_plain_integer_of_up_to_18_digits_is_read(number: int) -> None:
    assert parse_int(str(number)) == parse_ceil(str(number)) == number


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = parse_int(text)
    except InvalidRequest:
        return
    assert value is None or value == parse_ceil(text)
