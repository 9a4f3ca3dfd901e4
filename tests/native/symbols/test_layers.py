"""Dependencies between the compilation units of the native parts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.machine import ROOT

CHECK = ROOT / "native/check_layers.py"
LAYERS = """
top  # the hooks
left right
3 units in a circle: round about
base
"""
FOLDERS = ("top", "left", "right", "round", "about", "base")
CIRCLE = {
    "round/one": "int two(void); int one(void) { return two(); }",
    "about/two": "int three(void); int two(void) { return three(); }",
    "round/three": "int one(void); int three(void) { return one(); }",
}
Done = subprocess.CompletedProcess[str]
Units = Callable[[dict[str, str]], Done]


def check(layers: Path, sources: Path, objects: Path) -> Done:
    return subprocess.run(
        [sys.executable, CHECK, layers, sources, objects],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def units(tmp_path: Path) -> Units:
    """Compiles sources by "folder/name", with a circle as declared, and checks them."""

    def compile_and_check(sources: dict[str, str]) -> Done:
        own = {f"{name}/of_{name}": "" for name in FOLDERS}
        for unit, text in (own | CIRCLE | sources).items():
            file = tmp_path / "src" / f"{unit}.c"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            built = tmp_path / f"{file.stem}.o"
            include = f"-I{tmp_path / 'src'}"
            subprocess.run(["cc", "-c", include, "-o", built, file], check=True, timeout=60)
        layers = tmp_path / "layers"
        layers.write_text(LAYERS)
        return check(layers, tmp_path / "src", tmp_path)

    return compile_and_check


@pytest.mark.parametrize("part", ["libvgpu", "fakegpu"])
def test_the_folders_of_a_native_part_use_those_below(part: str) -> None:
    folder = ROOT / "native" / part
    done = check(folder / "layers", folder / "src", folder / "build")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_no_units_of_libvgpu_form_a_circle() -> None:
    """`layers` would have to declare it."""
    assert "circle" not in (ROOT / "native/libvgpu/layers").read_text()


@pytest.mark.parametrize("part", ["libvgpu", "fakegpu"])
def test_every_source_of_a_native_part_is_in_a_folder(part: str) -> None:
    assert list((ROOT / "native" / part / "src").glob("*.c")) == []


def test_folders_that_use_those_below_and_a_declared_circle_are_right(units: Units) -> None:
    done = units({"top/user": "int one(void); int user(void) { return one(); }"})
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_circle_between_two_units_is_found_with_its_symbols(units: Units) -> None:
    done = units(
        {
            "base/four": "int five(void); int four(void) { return five(); }",
            "base/five": "int four(void); int five(void) { return four(); }",
            "top/user": "int four(void); int user(void) { return four(); }",
        }
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "a circle of 2 units: base/five, base/four",
        "  base/five -> base/four: four",
        "  base/four -> base/five: five",
    ]


def test_a_circle_that_grows_beyond_what_is_declared_is_found(units: Units) -> None:
    done = units(
        {
            "round/three": "int four(void); int three(void) { return four(); }",
            "about/four": "int one(void); int four(void) { return one(); }",
        }
    )
    assert done.returncode == 1
    assert done.stdout.startswith("a circle of 4 units: about/four, about/two, ")


def test_a_circle_that_shrank_is_to_be_declared_smaller(units: Units) -> None:
    done = units({"about/two": "int one(void); int two(void) { return one(); }"})
    assert done.returncode == 1
    assert done.stdout == "the circle of about round has 2 units, not 3\n"


@pytest.mark.parametrize(
    ("lower", "higher", "direction"),
    [("base", "left", "up"), ("round", "top", "up"), ("left", "right", "sideways")],
)
def test_an_arrow_that_does_not_point_down_is_found(
    units: Units,
    lower: str,
    higher: str,
    direction: str,
) -> None:
    done = units(
        {
            f"{lower}/user": "int used(void); int user(void) { return used(); }",
            f"{higher}/used": "int used(void) { return 0; }",
        }
    )
    assert done.returncode == 1
    assert done.stdout == f"{lower}/user -> {higher}/used points {direction}: used\n"


def test_an_included_header_counts_like_a_symbol(units: Units, tmp_path: Path) -> None:
    header = tmp_path / "src/top/of_top.h"
    header.parent.mkdir(parents=True)
    header.write_text("struct hook { int at; };\n")
    done = units({"base/user": f'#include "{header.parent.name}/{header.name}"\n'})
    assert done.returncode == 1
    assert done.stdout == "base/user -> top/of_top points up: top/of_top.h\n"


def test_a_folder_without_a_layer_is_refused(units: Units) -> None:
    done = units({"utils/any": ""})
    assert done.returncode == 1
    assert done.stdout.endswith("differ: utils\n")
