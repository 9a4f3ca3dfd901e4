"""What the libraries show and need, and what the parts of libvgpu need of each other."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hami_node_agent.cleanup.library_needs import OLDEST_GLIBC, glibc_version, needs_of

from tests.native.machine import FAKEGPU, LIBVGPU, ROOT


def defined(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def rows(file: str, macro: str) -> set[str]:
    return set(re.findall(rf"^{macro}\((\w+)", (ROOT / file).read_text(), re.MULTILINE))


def stand_in_rows(file: str) -> set[str]:
    """The functions of a table of the stand-in, with the tables that it includes."""
    table = (ROOT / "native/fakegpu/src" / file).read_text()
    files = [file, *re.findall(r'^#include "(\w+\.def)"', table, re.MULTILINE)]
    macro = "(?:FN|PER_THREAD|REFUSED|DENIED|ELSEWHERE)"
    return set().union(*(rows(f"native/fakegpu/src/{name}", macro) for name in files))


def test_libvgpu_exports_the_lists_and_the_two_lookups() -> None:
    lists = rows("native/libvgpu/src/intercept/cuda.def", "HOOK") | rows(
        "native/libvgpu/src/intercept/nvml.def", "HOOK"
    )
    assert defined(LIBVGPU) == lists | {"dlsym", "dlvsym"}


@pytest.mark.parametrize(
    ("library", "file", "extra"),
    [
        ("libcuda.so.1", "driver.def", set()),
        ("libnvidia-ml.so.1", "nvml.def", {"nvmlErrorString"}),
    ],
)
def test_the_stand_ins_export_their_lists(library: str, file: str, extra: set[str]) -> None:
    assert defined(FAKEGPU / library) == stand_in_rows(file) | extra


def test_every_altered_function_exists_in_the_stand_in() -> None:
    assert rows("native/libvgpu/src/intercept/cuda.def", "HOOK") <= stand_in_rows("driver.def")


def test_the_library_loads_on_the_glibc_of_the_oldest_containers() -> None:
    """Any newer version in it ends every program of a container that does not have it."""
    needs = needs_of(LIBVGPU.read_bytes())
    assert needs.libraries == ("libc.so.6",)
    assert needs.name == "libvgpu.so"
    assert needs.versions
    assert max(map(glibc_version, needs.versions)) <= OLDEST_GLIBC
    bound = ".".join(map(str, OLDEST_GLIBC))
    assert f"\nOLDEST_GLIBC := {bound}\n" in (ROOT / "native/libvgpu/Makefile").read_text()


def test_no_lock_of_the_library_does_nothing_until_libpthread_is_there() -> None:
    """Before glibc 2.34 libc.so.6 passes these calls on to libpthread, and answers 0 without it.

    A driver that is opened later brings it, while a lock is held.
    """
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", LIBVGPU], check=True, capture_output=True, text=True
    ).stdout
    called = {line.split()[-1].partition("@")[0] for line in listing.splitlines()}
    passed_on = {name for name in called if name.startswith("pthread_")}
    assert passed_on == {"pthread_self", "pthread_setcancelstate"}


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("int puts(const char *); int f(void) { return puts(0); }", [], "needs GLIBC_2"),
        ("double cos(double); double f(double x) { return cos(x); }", ["-lm"], "needs libm.so.6"),
        ("int f(void) { return 0; }", ["-nostdlib"], "needs ; only libc.so.6"),
    ],
)
def test_the_build_refuses_a_library_that_older_containers_cannot_load(
    compile_c: Callable[..., Path], source: str, options: list[str], sentence: str
) -> None:
    library = compile_c(source, "-shared", "-fPIC", *options, name="libvgpu.so")
    check = ROOT / "native/libvgpu/check-needs"
    done = subprocess.run(
        [check, library, "2.2"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert sentence in done.stderr


LAYERS_CHECK = ROOT / "native/libvgpu/check_layers.py"
Units = Callable[[dict[str, str]], subprocess.CompletedProcess[str]]
FOLDERS = ("hooks", "memory", "compute", "state", "region", "config", "intercept", "base")


def layers(sources: Path, objects: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, LAYERS_CHECK, sources, objects],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def units(tmp_path: Path) -> Units:
    """Compiles sources by "folder/name" and checks them; every folder has one unit of its own."""

    def check(sources: dict[str, str]) -> subprocess.CompletedProcess[str]:
        own = {f"{name}/of_{name}": "" for name in FOLDERS}
        for unit, text in (own | sources).items():
            file = tmp_path / "src" / f"{unit}.c"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            built = tmp_path / f"{file.stem}.o"
            include = f"-I{tmp_path / 'src'}"
            subprocess.run(["cc", "-c", include, "-o", built, file], check=True, timeout=60)
        return layers(tmp_path / "src", tmp_path)

    return check


def test_the_units_of_libvgpu_form_no_circle_and_their_folders_use_those_below() -> None:
    done = layers(ROOT / "native/libvgpu/src", ROOT / "native/libvgpu/build")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_circle_between_two_units_is_found_with_its_symbols(
    units: Units,
) -> None:
    done = units(
        {
            "base/one": "int two(void); int one(void) { return two(); }",
            "base/two": "int one(void); int two(void) { return one(); }",
            "hooks/user": "int one(void); int user(void) { return one(); }",
        }
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "a circle of 2 units: base/one, base/two",
        "  base/one -> base/two: two",
        "  base/two -> base/one: one",
    ]


@pytest.mark.parametrize(
    ("lower", "higher", "direction"),
    [("base", "config", "up"), ("region", "hooks", "up"), ("memory", "compute", "sideways")],
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
    header = tmp_path / "src/hooks/of_hooks.h"
    header.parent.mkdir(parents=True)
    header.write_text("struct hook { int at; };\n")
    done = units({"base/user": f'#include "{header.parent.name}/{header.name}"\n'})
    assert done.returncode == 1
    assert done.stdout == "base/user -> hooks/of_hooks points up: hooks/of_hooks.h\n"


def test_a_folder_without_a_layer_is_refused(
    units: Units,
) -> None:
    done = units({"utils/any": ""})
    assert done.returncode == 1
    assert done.stdout.endswith("differ: utils\n")
