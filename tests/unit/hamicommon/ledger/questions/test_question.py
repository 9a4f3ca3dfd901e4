"""Values that people may write for a parameter, and the answer to an invalid one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions import Parameter, ParameterKind

NOW = datetime(2026, 11, 23, 20, 0, 30, tzinfo=UTC)


def parameter(kind: ParameterKind, **more: object) -> Parameter:
    return Parameter(name="x", kind=kind, meaning="what it is", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (ParameterKind.TIME, "now", NOW),
        (ParameterKind.TIME, "-15m", NOW - timedelta(minutes=15)),
        (ParameterKind.TIME, "14:05", NOW.replace(hour=14, minute=5, second=0)),
        (ParameterKind.TIME, "yesterday 14:05:09", datetime(2026, 11, 22, 14, 5, 9, tzinfo=UTC)),
        (
            ParameterKind.TIME,
            "2026-11-20T15:05:00+01:00",
            datetime(2026, 11, 20, 14, 5, tzinfo=UTC),
        ),
        (ParameterKind.TIME, "2026-11-20T14:05Z", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        (ParameterKind.TIME, NOW, NOW),
        (ParameterKind.TIME, "2h30m", NOW - timedelta(hours=2, minutes=30)),
        (ParameterKind.TIME, "7d", NOW - timedelta(days=7)),
        (ParameterKind.BYTES, "8Gi", 8 << 30),
        (ParameterKind.BYTES, "1024", 1024),
        (ParameterKind.BYTES, 1024, 1024),
        (ParameterKind.RATIO, "30%", 0.3),
        (ParameterKind.RATIO, "0.3", 0.3),
        (ParameterKind.COUNT, "12", 12),
        (ParameterKind.TEXT, "team-01", "team-01"),
        (ParameterKind.TEXT, "", None),
        (ParameterKind.TEXT, None, None),
    ],
)
def test_a_value_is_read_as_people_write_it(
    kind: ParameterKind, given: object, value: object
) -> None:
    assert parameter(kind).value_of(given, NOW) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (ParameterKind.TIME, "soon"),
        (ParameterKind.TIME, "25:00"),
        (ParameterKind.TIME, "-99999999999d"),
        (ParameterKind.TIME, "0001-01-01T00:00:00+23:00"),
        (ParameterKind.TIME, datetime(2026, 1, 1)),  # noqa: DTZ001
        (ParameterKind.TIME, "1 week"),
        (ParameterKind.BYTES, "8GB"),
        (ParameterKind.BYTES, "-1"),
        (ParameterKind.BYTES, True),
        (ParameterKind.RATIO, "130%"),
        (ParameterKind.RATIO, "nan"),
        (ParameterKind.COUNT, "1e9"),
        (ParameterKind.TEXT, "a\0b"),
        (ParameterKind.TEXT, "x" * 254),
        (ParameterKind.TEXT, "two\nlines"),
        (ParameterKind.TEXT, 5),
    ],
)
def test_what_is_none_is_refused_with_what_would_be_right(
    kind: ParameterKind, given: object
) -> None:
    with pytest.raises(InvalidRequest, match=r"parameter x is .*: use "):
        parameter(kind).value_of(given, NOW)


def test_a_default_a_choice_and_a_wanted_value() -> None:
    one_of = parameter(ParameterKind.TEXT, default="placed", choices=("placed", "refused"))

    assert one_of.value_of(None, NOW) == "placed"
    with pytest.raises(InvalidRequest, match="use placed or refused"):
        one_of.value_of("error", NOW)
    with pytest.raises(InvalidRequest, match="parameter x is missing: what it is"):
        parameter(ParameterKind.TEXT, required=True).value_of("", NOW)
