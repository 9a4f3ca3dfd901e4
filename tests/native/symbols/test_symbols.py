"""Symbols that the libraries export and import."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.driver_calls import hooks, nvml_altered
from tests.native.machine import FAKEGPU, LIBVGPU, ROOT

LIBVGPU_SOURCE = ROOT / "native/libvgpu"
OLDEST_GLIBC = re.compile(r"^OLDEST_GLIBC := ([\d.]+)$", re.MULTILINE)


def list_symbols(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def stand_in_rows(file: str) -> set[str]:
    """Name the functions of a table of the stand-in."""
    return set(re.findall(r"^FN\((\w+)", (ROOT / "native/fakegpu/src" / file).read_text(), re.M))


def test_libvgpu_exports_the_lists_and_the_two_lookups() -> None:
    lists = {hook.symbol for hook in hooks()} | set(nvml_altered())
    assert list_symbols(LIBVGPU) == lists | {"dlsym", "dlvsym"}


@pytest.mark.parametrize(
    ("library", "file", "extra"),
    [
        ("libcuda.so.1", "driver/driver.def", set()),
        ("libnvidia-ml.so.1", "nvml/nvml.def", {"nvmlErrorString"}),
    ],
)
def test_the_stand_ins_export_their_lists(library: str, file: str, extra: set[str]) -> None:
    assert list_symbols(FAKEGPU / library) == stand_in_rows(file) | extra


def test_every_altered_function_exists_in_the_stand_in() -> None:
    assert {hook.symbol for hook in hooks()} <= stand_in_rows("driver/driver.def")


def test_the_library_loads_on_the_glibc_of_the_oldest_containers() -> None:
    """Any newer version in it ends every program of a container that does not have it."""
    bound = OLDEST_GLIBC.search((LIBVGPU_SOURCE / "Makefile").read_text())
    assert bound is not None
    assert bound[1] == "2.17"
    subprocess.run([LIBVGPU_SOURCE / "check-needs", LIBVGPU, bound[1]], check=True)
    dynamic = subprocess.run(
        ["readelf", "--dynamic", LIBVGPU], check=True, capture_output=True, text=True
    ).stdout
    assert "soname: [libvgpu.so]" in dynamic


def test_a_library_that_needs_more_is_not_built() -> None:
    refused = subprocess.run(
        [LIBVGPU_SOURCE / "check-needs", LIBVGPU, "2.2"], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "above GLIBC_2.2" in refused.stderr


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


@pytest.mark.parametrize(
    ("linker", "option", "reason"),
    [
        ("", "-flto=auto\n", ""),
        (
            'case " $* " in *" -flto"*) exit 1 ;; esac\n',
            "",
            "libvgpu: built without -flto=auto, which {compiler} cannot link\n",
        ),
    ],
)
def test_a_compiler_that_cannot_link_with_lto_builds_without_it(
    tmp_path: Path, linker: str, option: str, reason: str
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\n{linker}exec cc "$@"\n')
    compiler.chmod(0o755)
    check = ROOT / "native/libvgpu/check-lto"
    done = subprocess.run([check, compiler], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == (option, reason.format(compiler=compiler))
