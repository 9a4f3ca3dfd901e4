"""The library itself under the sanitizers: preloaded into a program that makes every altered call.

`test_units.py` tests the engine without the hooks. A finding ends the program, and is on stderr.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.allocators.allocators import KINDS
from tests.native.allocators.context_makers import KINDS as CONTEXTS
from tests.native.driver_calls import DATA
from tests.native.machine import CARDS, FAKEGPU, LIBVGPU, MIB, ROOT, Container
from tests.waiting import PATIENCE_S

LIMIT = 12 * MIB


def build_instrumented(sanitizer: str) -> str:
    folder = ROOT / "native/libvgpu"
    subprocess.run(
        ["make", "-s", "-j2", "-C", folder, f"library-{sanitizer}"], check=True, timeout=250
    )
    return str(folder / f"build/library-{sanitizer}/libvgpu.so")


def test_assertions_are_in_the_instrumented_library_alone() -> None:
    assert b": assertion " in Path(build_instrumented("address")).read_bytes()
    assert b": assertion " not in LIBVGPU.read_bytes()


def runtime(name: str) -> str:
    """The sanitizer's library, which has to come first."""
    command = ["cc", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def limit_container(container: Container) -> Container:
    lines = (f"device {card} memory_bytes {LIMIT} core_percent 50\n" for card in CARDS)
    container.limits("hami-limits 1\npolicy force\n" + "".join(lines))
    return container


def test_every_call_is_clean_under_the_address_and_undefined_behaviour_sanitizers(
    container: Container,
) -> None:
    preload = (runtime("libasan.so"), build_instrumented("address"), str(FAKEGPU / "libpathmap.so"))
    client = limit_container(container).start(
        LD_PRELOAD=":".join(preload), ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="halt_on_error=1"
    )
    assert str(LIBVGPU) not in Path(f"/proc/{client.pid}/maps").read_text()
    assert client.call("open_device") == {"result": 0}
    for kind in KINDS:
        taken = client.call("take", kind=kind, bytes=8 * MIB)
        assert taken["result"] == 0, kind
        assert KINDS[kind].given_up or client.alloc(LIMIT)[0] == 2, kind
        assert client.call("give_back", token=taken["token"]) == {"result": 0}, kind
    for how in CONTEXTS:
        assert client.call("further_context", how=how, bytes=MIB)["result"] == 0, how
    assert client.call("launch_on_both", how="push") == {"result": 0}
    assert client.call("launch", kernels=50) == {"result": 0}
    assert client.nvml("nvmlDeviceGetMemoryInfo", 0)["total"] == LIMIT
    assert client.call("fork_and_alloc", bytes=MIB)["result"] == 0
    assert client.close() == 0


def test_many_threads_are_clean_under_the_thread_sanitizer(
    container: Container, compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    program = compile_c((DATA / "threads.c").read_text(), "-fsanitize=thread", "-ldl", "-pthread")
    # The tables of real functions are built and published, atomically, by files that are not
    # instrumented: the sanitizer cannot know.
    unseen = tmp_path / "suppressions"
    unseen.write_text("race:cuda_now\nrace:nvml_now\n")
    done = subprocess.run(
        [program, container.region],
        env=limit_container(container).env(
            LD_PRELOAD=f"{build_instrumented('thread')}:{FAKEGPU / 'libpathmap.so'}",
            TSAN_OPTIONS=f"halt_on_error=1:print_suppressions=0:suppressions={unseen}",
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("sanitizer", "first"), [("address", ["libasan.so"]), ("thread", []), ("undefined", [])]
)
def test_a_tenants_own_sanitizer_starts_under_the_library(
    compile_c: Callable[..., Path], sanitizer: str, first: list[str]
) -> None:
    """A sanitizer looks functions up, through our dlsym, before it is initialised."""
    program = compile_c("int main(void) { return 0; }", f"-fsanitize={sanitizer}")
    preload = [*map(runtime, first), str(LIBVGPU)]
    done = subprocess.run(
        [program],
        env={"LD_PRELOAD": ":".join(preload)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
