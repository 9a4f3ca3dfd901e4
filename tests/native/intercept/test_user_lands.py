"""The library in the user lands of other distributions, named by /etc/ld.so.preload as in a pod.

    pip install --target /runtimes --no-deps \\
        nvidia-cuda-runtime-cu11 nvidia-cuda-runtime-cu12 nvidia-cuda-runtime==13.0.96
    HAMI_USER_LANDS=/folder HAMI_CUDA_RUNTIMES=/runtimes \\
        .venv/bin/pytest tests/native/intercept/test_user_lands.py -rs

Each folder in HAMI_USER_LANDS is the root file system of one distribution (`mmdebstrap`, an
exported image); root is needed. HAMI_CUDA_RUNTIMES has, anywhere below it, files
`libcudart.so.*` of NVIDIA. docs/libvgpu.md lists the tested ones. The driver's stand-in and its
clients are built for GLIBC_2.17 by zig (the wheel `ziglang`), because the project's own builds of
them are only for this machine. A user land without glibc's loader counts as musl.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.native.driver_calls import DATA
from tests.native.machine import CARDS, LIBVGPU, MIB, ROOT, Machine

LANDS = os.environ.get("HAMI_USER_LANDS", "")
RUNTIMES = os.environ.get("HAMI_CUDA_RUNTIMES", "")
NO_LANDS = "HAMI_USER_LANDS names no folder of such root file systems"
LOADERS = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
PRELOADED = "/usr/local/vgpu/libvgpu.so"
LIMIT = 64 * MIB
BLOCK = 16 * MIB  # what runtime_client.c takes
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

Inside = Callable[..., tuple[int, str, str]]

# The command runs in a new mount namespace, whose root is a temporary layer over the land.
ENTER = """
set -eu
land=$1 work=$2; shift 2
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=$land,upperdir=$work/upper,workdir=$work/work" "$work/root"
cd "$work/root"
mkdir -p proc dev tmp etc/hami usr/local/vgpu
mount -t proc proc proc
mount --bind /dev dev
cp -r "$GIVEN"/. .
exec chroot . "$@"
"""


def lands() -> list[Path]:
    return sorted(path for path in Path(LANDS).iterdir() if path.is_dir()) if LANDS else []


def runtimes() -> list[Path]:
    return sorted(Path(RUNTIMES).rglob("libcudart.so.*")) if RUNTIMES else []


def has_glibc(land: Path) -> bool:
    return any(os.path.lexists(land / each) for each in LOADERS)


@pytest.fixture(scope="module")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in driver and its clients for GLIBC_2.17."""
    if not LANDS:
        pytest.skip(NO_LANDS)  # made before the fixture that would skip
    folder = tmp_path_factory.mktemp("old") / "native"
    shutil.copytree(ROOT / "native", folder, ignore=shutil.ignore_patterns("build"))
    # memfd_create came with 2.27.
    later = folder / "later.h"
    later.write_text(
        "#include <sys/syscall.h>\n#include <unistd.h>\n#define MFD_CLOEXEC 1U\n"
        "#define memfd_create(name, flags) ((int)syscall(SYS_memfd_create, name, flags))\n"
    )
    zig = f"{sys.executable} -m ziglang cc -target {os.uname().machine}-linux-gnu.2.17"
    subprocess.run(
        [
            "make",
            "-s",
            f"CC={zig}",
            f"CFLAGS=-O2 -include {later}",
            "WERROR=",
            "-C",
            folder / "fakegpu",
        ],
        check=True,
        timeout=280,
    )
    build = folder / "fakegpu/build"
    for made, source, options in (
        ("small_stack", "small_stack.c", []),
        ("runtime_client", "runtime_client.c", []),
        ("libcudart.so", "recorded_runtime.c", ["-shared", "-fPIC"]),
    ):
        command = [*zig.split(), "-O2", *options, "-o", str(build / made), str(DATA / source)]
        subprocess.run([*command, "-ldl", "-pthread"], check=True, timeout=280)
    shutil.copy(DATA / "runtime-requests.txt", build)
    return build


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """Folder with the node's mounts of a container: library, preload list, limits."""
    folder = tmp_path / "given"
    for each in ("usr/local/vgpu", "etc/hami"):
        (folder / each).mkdir(parents=True)
    shutil.copy(LIBVGPU, folder / PRELOADED[1:])
    (folder / "etc/ld.so.preload").write_text(f"{PRELOADED}\n")
    lines = (f"device {card} memory_bytes {LIMIT} core_percent 50\n" for card in CARDS)
    (folder / "etc/hami/limits").write_text(
        "hami-limits 1\n" + "".join(lines) + "region /tmp/region\n"
    )
    return folder


@pytest.fixture
def inside(mounted: Path, tmp_path: Path) -> Inside:
    """inside(land, command, environment) -> (exit status, stdout, stderr)"""
    work = tmp_path / "work"
    work.mkdir()

    def run(
        land: Path, command: Sequence[str], env: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(land), str(work), *command],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/",
                "GIVEN": str(mounted),
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def with_driver(old_driver: Path, mounted: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a program on two cards of the stand-in driver, which is in /driver."""
    shutil.copytree(old_driver, mounted / "driver", ignore=shutil.ignore_patterns("*.o", "*.d"))
    machine = Machine.with_two_cards(tmp_path)
    machine.settings["state"] = "/tmp/state"
    machine.write()
    shutil.copy(tmp_path / "machine.json", mounted / "machine.json")
    return {
        "LD_LIBRARY_PATH": "/driver",
        "FAKEGPU_CONFIG": "/machine.json",
    }


def not_preloaded(mounted: Path) -> None:
    (mounted / "etc/ld.so.preload").write_text("")


def one_of(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip(NO_LANDS)
    return Path(request.param)


def params(glibc: bool) -> list[Path | None]:
    return [land for land in lands() if has_glibc(land) == glibc] or [None]


def name_of(land: Path | None) -> str:
    return land.name if land else "none"


@pytest.fixture(params=params(glibc=True), ids=name_of)
def glibc_land(request: pytest.FixtureRequest) -> Path:
    return one_of(request)


@pytest.fixture(params=params(glibc=False), ids=name_of)
def musl_land(request: pytest.FixtureRequest) -> Path:
    return one_of(request)


def test_programs_run_and_have_the_library(glibc_land: Path, inside: Inside) -> None:
    assert inside(glibc_land, ["/bin/true"]) == (0, "", "")
    assert inside(glibc_land, ["/bin/cat", "/etc/hami/limits"])[0] == 0
    maps = inside(glibc_land, ["/bin/cat", "/proc/self/maps"])
    assert (maps[0], PRELOADED in maps[1], maps[2]) == (0, True, "")


def test_python_runs_and_looks_functions_up(glibc_land: Path, inside: Inside) -> None:
    script = "import ctypes, threading; print(ctypes.CDLL(None).getpid() > 0)"
    alone = ["chroot", str(glibc_land), "/usr/bin/python3", "-c", ""]
    if subprocess.run(alone, capture_output=True, timeout=120, check=False).returncode != 0:
        pytest.skip(f"{glibc_land.name} has no Python that starts without the library")
    assert inside(glibc_land, ["/usr/bin/python3", "-c", script]) == (0, "True\n", "")


def test_a_cuda_program_is_held_to_its_limit(
    glibc_land: Path, inside: Inside, with_driver: dict[str, str]
) -> None:
    for first in ("init", "alloc", "launch", "nvml", "child"):
        assert inside(glibc_land, ["/driver/small_stack", first], with_driver) == (0, "", ""), first
    status, out, err = inside(
        glibc_land, ["/driver/vgpu-probe", "--once"], {**with_driver, "LIBCUDA_LOG_LEVEL": "1"}
    )
    assert status == 0, (out, err)
    assert f"OOM {LIMIT + 1} / {LIMIT}" in err


def test_the_calls_of_a_cuda_runtime_are_held_to_the_limit(
    glibc_land: Path, inside: Inside, with_driver: dict[str, str], mounted: Path
) -> None:
    client = ["/driver/runtime_client", "/driver/libcudart.so"]
    env = {**with_driver, "RUNTIME_REQUESTS": "/driver/runtime-requests.txt"}
    status, held, err = inside(glibc_land, client, env)
    assert (status, err) == (0, "")
    lookups = next(
        (line for line in held.splitlines() if line.startswith("lookups ")), "no lookups"
    )
    assert held.splitlines() == [
        "cudaDriverGetVersion 0 12080",
        "cudaGetDeviceCount 0 2",
        "libcuda.so.1 1",
        lookups,
        f"cudaMemGetInfo 0 {LIMIT} {LIMIT}",
        "cudaMalloc 0 1",
        f"cudaMemGetInfo 0 {LIMIT - BLOCK} {LIMIT}",
        "cudaMemset 0",
        "cudaMemcpy 0",
        "cudaMemcpy 0 1 1",
        f"cudaMalloc {OUT_OF_MEMORY} 0",
        "cudaFree 0",
        f"cudaMemGetInfo 0 {LIMIT} {LIMIT}",
    ]
    not_preloaded(mounted)
    status, bare, err = inside(glibc_land, client, env)
    assert (status, err) == (0, "")
    assert lookups in bare.splitlines()
    assert f"cudaMemGetInfo 0 {8192 * MIB} {8192 * MIB}" in bare.splitlines()


@pytest.mark.parametrize(
    "runtime", [*runtimes()] or [None], ids=lambda path: path.name if path else "none"
)
def test_nvidias_runtime_answers_as_it_does_without_the_library(
    glibc_land: Path,
    runtime: Path | None,
    inside: Inside,
    with_driver: dict[str, str],
    mounted: Path,
) -> None:
    """On the stand-in driver it only loads, finds libcuda and refuses it."""
    if runtime is None:
        pytest.skip("HAMI_CUDA_RUNTIMES names no folder with a libcudart.so.*")
    shutil.copy(runtime, mounted / "driver" / runtime.name)
    client = ["/driver/runtime_client", f"/driver/{runtime.name}"]
    held = inside(glibc_land, client, with_driver)
    not_preloaded(mounted)
    bare = inside(glibc_land, client, with_driver)
    if bare[0] == 2:
        pytest.skip(f"{glibc_land.name} has not what {runtime.name} needs: {bare[2].strip()}")
    assert held == bare
    assert (held[0], held[2]) == (0, "")
    assert "libcuda.so.1 1" in held[1].splitlines()


def test_where_there_is_no_glibc_programs_run_without_the_library(
    musl_land: Path, inside: Inside
) -> None:
    """musl reads no ld.so.preload. LD_PRELOAD it obeys, and then the program does not start."""
    status, maps, err = inside(musl_land, ["/bin/cat", "/proc/self/maps"])
    assert (status, PRELOADED in maps, err) == (0, False, "")
    status, _, err = inside(musl_land, ["/bin/cat", "/proc/self/maps"], {"LD_PRELOAD": PRELOADED})
    assert status == 127
    assert "Error relocating" in err or "Error loading shared library" in err
