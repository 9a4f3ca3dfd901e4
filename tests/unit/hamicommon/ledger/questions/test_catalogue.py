"""The questions as a whole: each can be paged, read and shown to who may see a part."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from hamicommon.errors import NotFound
from hamicommon.ledger.questions import Audience, ColumnKind, Question, question, questions
from hamicommon.ledger.questions.question import SQL_TYPES

ALL = list(questions().values())


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_a_question_is_whole(asked: Question) -> None:
    names = {parameter.name for parameter in asked.parameters}
    placed = set(re.findall(r"(?<![:\w]):([a-z_]+)\b", asked.sql))
    known = {column.name: column for column in asked.columns}

    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", asked.name)
    assert 1 <= asked.number <= 20
    assert asked.title.endswith("?")
    assert placed == names
    assert {parameter.kind for parameter in asked.parameters} <= set(SQL_TYPES)
    assert len(known) == len(asked.columns)
    for name in asked.key:
        assert not known[name].unknown
        assert not known[name].none
        assert known[name].kind not in (ColumnKind.COUNTS, ColumnKind.BOOLEAN)
    assert all(way <= names for way in asked.needs)
    assert asked.sql.startswith("-- ")
    assert not asked.sql.rstrip().endswith(";")


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_who_is_named_is_named_with_a_namespace_or_to_the_whole_cluster(asked: Question) -> None:
    named = [column.name for column in asked.columns if column.names_somebody]
    has_namespace = any(column.name == "namespace" for column in asked.columns)

    assert not named or has_namespace or asked.audience is Audience.CLUSTER


def test_the_page_lists_every_question_with_what_it_takes() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "sql.md").read_text()

    for asked in ALL:
        takes = " ".join(
            f"{each.name}={each.default}" if each.default else each.name
            for each in asked.parameters
        )
        assert f"| {asked.number} | `{asked.name}` | {asked.title} | `{takes}` |" in page or (
            not takes and f"| {asked.number} | `{asked.name}` | {asked.title} | |" in page
        )
    assert page.count("? | ") == len(ALL)


def test_every_file_belongs_to_a_question() -> None:
    folder = files("hamicommon.ledger.questions") / "sql"

    assert {entry.name for entry in folder.iterdir()} == {f"{name}.sql" for name in questions()}


def test_a_name_that_is_none_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="'who-held-a-card'; did you mean who-held-card"):
        question("who-held-a-card")
