"""Text that others chose is bounded, printable and recognisable."""

from __future__ import annotations

import time

import pytest
from hamicommon.clipping import CLIP_LIMIT, clip
from hypothesis import given
from hypothesis import strategies as st

any_text = st.text(st.characters(codec=None), max_size=600)  # half surrogate pairs too
limits = st.integers(min_value=0, max_value=400)


@given(any_text, limits)
def test_clipped_text_is_bounded_printable_and_can_be_encoded(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped) <= limit
    assert clipped.isprintable()
    clipped.encode()


@given(any_text, limits)
def test_clipping_twice_is_clipping_once(text: str, limit: int) -> None:
    once = clip(text, limit)
    assert clip(once, limit) == once


@given(any_text)
def test_printable_text_that_fits_is_left_as_it_is(text: str) -> None:
    shown = "".join(character for character in text if character.isprintable())
    assert clip(shown, len(shown)) is shown


@given(any_text, st.integers(min_value=3, max_value=400))
def test_what_is_kept_is_the_beginning_with_whole_escapes(text: str, limit: int) -> None:
    whole = clip(text, 10 * len(text))
    clipped = clip(text, limit)
    if len(whole) <= limit:
        assert clipped == whole
    else:
        kept = clipped.removesuffix("...")
        beginnings = [clip(text[:length], 10 * len(text)) for length in range(len(text) + 1)]
        assert kept in beginnings
        longer = [one for one in beginnings if len(kept) < len(one) <= limit - 3]
        assert not longer


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("nul\0", r"nul\x00"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("turned\u202eback", r"turned\u202eback"),
        ("line\u2028break", r"line\u2028break"),
        ("half\ud800", r"half\ud800"),
        ("\U000e0001", r"\U000e0001"),
        ("größe 漢字 \N{GRINNING FACE}", "größe 漢字 \N{GRINNING FACE}"),
        (r"C:\temp", r"C:\temp"),
    ],
)
def test_what_cannot_be_printed_is_escaped_and_the_rest_is_not(text: str, shown: str) -> None:
    assert clip(text) == shown


def test_a_long_text_keeps_its_beginning_and_shows_the_cut() -> None:
    assert clip("x" * 1000) == "x" * (CLIP_LIMIT - 3) + "..."


def test_a_text_of_many_megabytes_costs_what_a_short_one_costs() -> None:
    huge = "\x1b" * 50_000_000
    begun_s = time.process_time()
    for _ in range(100):
        clip(huge)
    assert time.process_time() - begun_s < 1.0
