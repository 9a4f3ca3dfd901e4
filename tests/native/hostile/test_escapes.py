"""Ways around the library that a tenant may try from inside: those that it holds, and those that
it can't. The node can see the latter only from outside.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.driver_calls import DATA
from tests.native.machine import FAKEGPU, MIB, Container
from tests.waiting import PATIENCE_S

HELD = f"2 {MIB}"
ESCAPED = f"0 {8192 * MIB}"


@pytest.fixture
def attempt(container: Container, compile_c: Callable[..., Path]) -> Callable[..., str]:
    """attempt(way, path of the driver, variables) -> the output of the program."""
    program = compile_c((DATA / "escape.c").read_text(), "-w", "-ldl", name="escape")
    container.limit(MIB)

    def run(way: str, *path: Path, **env: str) -> str:
        done = subprocess.run(
            [program, way, *path],
            env=container.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.strip()

    return run


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The driver under another file name, and by another name inside."""
    library = tmp_path / "libfancy.so.7"
    content = (FAKEGPU / "libcuda.so.1").read_bytes()
    assert content.count(b"libcuda.so.1\0") >= 1
    library.write_bytes(content.replace(b"libcuda.so.1\0", b"libfancy.so7\0"))
    return library


@pytest.mark.parametrize("way", ["plain", "version", "deepbind", "global-next", "global-default"])
def test_the_driver_itself_is_held_however_it_is_asked(
    attempt: Callable[..., str], way: str
) -> None:
    assert attempt(way) == HELD


@pytest.mark.parametrize(
    "way",
    [
        "namespace",
        "namespace-version",
        "namespace-both",
        "namespace-foreign-dlsym",
    ],
)
def test_a_driver_in_a_namespace_of_its_own_is_held(attempt: Callable[..., str], way: str) -> None:
    # Functions were known only by their address in the first copy.
    assert attempt(way) == HELD


@pytest.mark.parametrize(
    "way", ["plain", "version", "both", "deepbind", "both-version", "global-next", "namespace"]
)
def test_a_renamed_copy_of_the_driver_is_held(
    attempt: Callable[..., str], copy: Path, way: str
) -> None:
    assert attempt(way, copy) == HELD


def test_a_copy_without_the_driver_gives_nothing(
    attempt: Callable[..., str], copy: Path, tmp_path: Path
) -> None:
    # The one driver that lookups answer with is not to be found.
    (tmp_path / "empty").mkdir()
    assert attempt("plain", copy, LD_LIBRARY_PATH=str(tmp_path / "empty")) == "none"


def test_functions_of_a_copy_that_are_not_altered_are_the_drivers(
    container: Container, compile_c: Callable[..., Path], copy: Path
) -> None:
    # Else the two halves of the program would work on two drivers.
    program = compile_c(
        r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *copy = dlopen(arguments[1], RTLD_NOW);
    static const char *const names[] = {"cuCtxGetDevice", "cuMemcpyHtoD_v2", "cuMemAlloc_v2", "x"};
    for (int i = 0; i < 4; i++) printf("%d", dlsym(driver, names[i]) == dlsym(copy, names[i]));
    printf("%d\n", dlsym(copy, "cuNoSuchName") == NULL);
    return 0;
}
""",
        "-ldl",
    )
    done = subprocess.run(
        [program, copy],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "11111\n"


def test_a_library_that_a_tenant_preloads_in_front_of_ours_is_held(
    attempt: Callable[..., str], container: Container, compile_c: Callable[..., Path]
) -> None:
    # LD_PRELOAD precedes /etc/ld.so.preload: its own functions come first, then ours.
    front = compile_c(
        r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    int (*real)(uint64_t *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return real(pointer, bytes);
}
""",
        *("-shared", "-fPIC", "-w", "-ldl"),
        name="front.so",
    )
    env = container.env()
    assert attempt("plain", LD_PRELOAD=f"{front}:{env['LD_PRELOAD']}") == HELD


def test_reading_the_drivers_symbol_table_is_not_held(attempt: Callable[..., str]) -> None:
    # No lookup is made: the code of a process can always read its own memory.
    assert attempt("elf") == ESCAPED
    assert attempt("namespace-elf") == ESCAPED


def test_an_audit_module_that_hides_the_library_is_not_held(
    attempt: Callable[..., str], compile_c: Callable[..., Path]
) -> None:
    # The dynamic linker asks it before it loads anything (rtld-audit(7)).
    audit = compile_c(
        (DATA / "audit.c").read_text(),
        *("-shared", "-fPIC", "-w"),
        name="audit.so",
    )
    assert attempt("plain", LD_AUDIT=str(audit)) == ESCAPED


@pytest.mark.parametrize("way", ["library-deepbind", "library-namespace"])
def test_a_library_that_the_linker_binds_to_the_driver_first_is_not_held(
    attempt: Callable[..., str], compile_c: Callable[..., Path], tmp_path: Path, way: str
) -> None:
    # It is linked with the driver, and its own dependencies come before everything else.
    linked = compile_c(
        (DATA / "linked.c").read_text(),
        *("-shared", "-fPIC", "-w", f"-L{FAKEGPU}", "-l:libcuda.so.1"),
        name="linked.so",
    )
    assert attempt(way, linked) == ESCAPED


def test_a_copy_of_the_whole_driver_beside_it_is_one_account(
    attempt: Callable[..., str], tmp_path: Path
) -> None:
    beside = tmp_path / "beside/libcuda.so.1"
    beside.parent.mkdir()
    shutil.copy(FAKEGPU / "libcuda.so.1", beside)
    assert attempt("both", beside) == HELD
    assert attempt("plain", beside) == HELD
