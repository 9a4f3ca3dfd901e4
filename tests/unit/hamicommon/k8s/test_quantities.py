"""Quantities are read as Kubernetes reads them: what counts is how the number is written."""

from fractions import Fraction

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import quantities
from hamicommon.k8s.quantities import parse_ceil, parse_exact, parse_int, parse_milli
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
        ("64Gi", 64 * 2**30),
        ("1E", 10**18),
        ("500m", 1),
        (3, 3),
    ],
)
def test_a_fraction_is_rounded_away_from_zero(written, value) -> None:
    assert parse_ceil(written) == value


@pytest.mark.parametrize(
    ("written", "thousandths"),
    [
        ("2", 2000),
        ("500m", 500),
        ("1.5", 1500),
        ("100n", 1),
        ("-100n", -1),
        (3, 3000),
        ("1e3", 10**6),
        ("64Gi", 64 * 2**30 * 1000),
        ("1E", 10**21),
    ],
)
def test_thousandths_are_rounded_away_from_zero(written, thousandths) -> None:
    assert parse_milli(written) == thousandths


@pytest.mark.parametrize(
    "written",
    ["", " ", "abc", "1x", "1 Gi", "--1", "1.2.3", "1ki", "Gi", "e3", ".", "1e", "1KiB", "1Q",
     "1-5", "1e1.5", None, True, [],
     "\u0661"],
)  # fmt: skip
def test_garbage_is_refused_with_the_value(written) -> None:
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        parse_int(written)
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        parse_ceil(written)


def test_a_number_with_an_unknown_unit_is_distinguished_from_what_is_no_number() -> None:
    with pytest.raises(quantities.NoSuchSuffix, match="'mm' is no unit"):
        parse_exact("1mm")


def test_an_absurd_exponent_is_refused_without_computing_it() -> None:
    for absurd in ("1e999999999", "9" * 5000):
        with pytest.raises(InvalidRequest, match="out of range"):
            parse_ceil(absurd)
    assert parse_int("1e999999999") is None


@settings(max_examples=100)
@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_every_plain_integer_of_up_to_18_digits_is_read(number: int) -> None:
    assert parse_int(str(number)) == parse_ceil(str(number)) == number


@settings(max_examples=100)
@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = parse_int(text)
    except InvalidRequest:
        return
    assert value is None or value == parse_ceil(text)


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
        ("1E400", "10e399"),
        ("9223372036854775808", "9223372036854775808"),
        ("100E", "100E"),
    ],
)
def test_the_canonical_form_is_the_one_of_the_real_server(text: str, canonical: str) -> None:
    assert quantities.canonical(text) == canonical


@settings(max_examples=100)
@given(
    number=st.integers(min_value=-(10**15), max_value=10**15),
    suffix=st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]),
)
def test_the_canonical_form_keeps_the_value_and_is_stable(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    canonical = quantities.canonical(text)
    assert parse_exact(canonical) == parse_exact(text)
    assert quantities.canonical(canonical) == canonical


def test_values_are_exact() -> None:
    assert parse_exact("0.1") == Fraction(1, 10)
    assert parse_exact("1Ei") == 2**60
