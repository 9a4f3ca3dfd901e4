"""Whether a path reaches another: no spelling of a guarded path is missed."""

import pytest
from hamicommon.admission.tampering.mounts import covers, is_within, parts_of
from hypothesis import given
from hypothesis import strategies as st

GUARDED = "/usr/local/vgpu"
PARTS = parts_of(GUARDED)
names = st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1, max_size=5)
plain = names.filter(lambda name: name not in (".", ".."))


@st.composite
def spellings(draw: st.DrawFn, parts: tuple[str, ...]) -> str:
    """The same path: doubled slashes, dots, and ways down that come back up."""
    text = draw(st.sampled_from(("", "/", "//", "/../", "/./", "/../../")))
    for part in parts:
        for detour in draw(st.lists(plain, max_size=2)):
            text += f"{detour}/../"
        text += part + draw(st.sampled_from(("/", "//", "/./", "/././/")))
    return draw(st.sampled_from((text, text.rstrip("/") or "/")))


@given(spellings(PARTS))
def test_every_spelling_of_the_path_is_the_path(spelt: str) -> None:
    assert covers(parts_of(spelt), [PARTS]) == PARTS


@given(st.data(), st.integers(0, len(PARTS)))
def test_every_folder_above_reaches_it(data: st.DataObject, depth: int) -> None:
    spelt = data.draw(spellings(PARTS[:depth]))

    assert covers(parts_of(spelt), [PARTS]) == PARTS


@given(st.data(), st.lists(plain, min_size=1, max_size=3))
def test_whatever_is_below_reaches_it(data: st.DataObject, below: list[str]) -> None:
    spelt = data.draw(spellings((*PARTS, *below)))

    assert covers(parts_of(spelt), [PARTS]) == PARTS
    assert is_within(parts_of(spelt), PARTS)


@given(st.lists(plain, min_size=1, max_size=5))
def test_what_leaves_the_way_to_it_is_beside_it(parts: list[str]) -> None:
    leaves = any(one != other for one, other in zip(parts, PARTS, strict=False))

    assert (covers(tuple(parts), [PARTS]) is None) is leaves


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/etc/../etc/ld.so.preload", ("etc", "ld.so.preload")),
        ("etc/hami", ("etc", "hami")),
        ("//etc//hami//", ("etc", "hami")),
        ("/../../etc/hami/.", ("etc", "hami")),
        ("/etc/hami/..", ("etc",)),
        ("/", ()),
        ("", ()),
        ("/var/run/cdi", ("run", "cdi")),
        ("/var/./run//x", ("run", "x")),
        ("/var/running", ("var", "running")),
        ("/etc/...", ("etc", "...")),
    ],
)
def test_paths_are_read_as_a_runtime_resolves_them(path: str, parts: tuple[str, ...]) -> None:
    assert parts_of(path) == parts


def test_a_name_that_only_begins_alike_is_beside_it() -> None:
    assert covers(parts_of("/usr/local/vgpu2"), [PARTS]) is None
    assert covers(parts_of("/etc/hamilton"), [parts_of("/etc/hami")]) is None
