"""Sources of limits: the container's file, HAMi's variables, new ones during the run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hami_node_agent.cleanup.installed_files import mark_library

from tests.native.driver_program import PRELUDE
from tests.native.machine import CARDS, LIBVGPU, MIB, ROOT, Client, Container, open_context
from tests.waiting import PATIENCE_S, wait

OUT_OF_MEMORY, POISON = 2, 0xDEAD
WHOLE_CARD = 8192 * MIB


def core_percent_in_region(container: Container) -> int:
    """The limit of card 0."""
    with container.region.open("rb") as region:
        region.seek(1728)
        return int.from_bytes(region.read(8), "little")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1000m", 1000 * MIB),
        ("1g", 1024 * MIB),
        ("1GiB", 1024 * MIB),
        ("1gb", 1024 * MIB),
        ("2048K", 2 * MIB),
        ("4kib", 4096),
        ("12345", 12345),
        ("0x1000", 4096),
        ("1.5G", 1536 * MIB),
        ("0.5g", 512 * MIB),
        ("0.25GiB", 256 * MIB),
        (" 1000m ", 1000 * MIB),
        ("1 G", 1024 * MIB),
        ("\t2048K\n", 2 * MIB),
        ("1.9", 1),
        ("", WHOLE_CARD),
        ("0", WHOLE_CARD),
        ("0m", WHOLE_CARD),
        ("0.0G", WHOLE_CARD),
    ],
)
def test_the_variable_of_hami_limits_memory(container: Container, text: str, limit: int) -> None:
    client = open_context(container.start(CUDA_DEVICE_MEMORY_LIMIT_0=text))
    assert client.info() == (limit, limit)


def program_output(container: Container, **env: str) -> tuple[str, str]:
    """Free and total memory that a program sees of card 0, and the lines on its stderr."""
    program = """
free, total = c_size_t(), c_size_t()
ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
made = c_uint64()
refused = cuda.cuMemAlloc_v2(byref(made), c_size_t(1)) == 2
show(free.value, total.value, "refused" if refused else "given")
"""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        env=container.env(**env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout.strip(), done.stderr


NO_CARD = "0 0 refused"
MEMORY_VARIABLES = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0")
NO_AMOUNTS = ["lots", "10x", "-1", "50%", "1.5.G", ".5G", "1.G", "1,5G", "nan", "1e3", "0x"]
TOO_SMALL_OR_LARGE = ["0.1", "0.0000000001k", "99999999999g"]
CORE_VARIABLES = ("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0")
NO_PERCENTAGES = ["30%", "-1", "abc", "50k", "0.5", "30.5", "99999999999999999999"]


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *[(name, text) for name in MEMORY_VARIABLES for text in [*NO_AMOUNTS, *TOO_SMALL_OR_LARGE]],
        *[(name, text) for name in CORE_VARIABLES for text in NO_PERCENTAGES],
        *[("GPU_CORE_UTILIZATION_POLICY", text) for text in ("froce", "disabled", "1", "off")],
        *[("CUDA_OVERSUBSCRIBE", text) for text in ("ture", "2", "oui")],
    ],
)
def test_a_variable_that_cannot_be_read_gives_no_card_and_is_reported(
    container: Container, variable: str, text: str
) -> None:
    # Without LIBCUDA_LOG_LEVEL, and whatever the others are.
    env = {"CUDA_DEVICE_MEMORY_LIMIT_1": "2g", variable: text}
    seen, lines = program_output(container, **env)
    assert seen == NO_CARD
    (line,) = lines.splitlines()
    assert f"{variable}={text}" in line
    assert "ERROR" in line
    assert "cannot be used" in line


def test_a_card_with_a_readable_limit_of_its_own_needs_no_general_one(
    container: Container,
) -> None:
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "lots", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}
    client = container.start(**env)
    assert open_context(client, 0).info()[1] == 1024 * MIB
    assert open_context(client, 1).info() == (0, 0)


@pytest.mark.parametrize(
    ("text", "percent"),
    [("30", 30), (" 30\n", 30), ("0x1e", 30), ("030", 30), ("0", 100), ("", 100), ("250", 100)],
)
def test_the_variable_of_hami_limits_cores(container: Container, text: str, percent: int) -> None:
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_SM_LIMIT": text}
    open_context(container.start(**env))
    assert core_percent_in_region(container) == percent


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *[
            ("GPU_CORE_UTILIZATION_POLICY", text)
            for text in ("", "default", "force", "FORCE", " disable ")
        ],
        *[
            ("CUDA_OVERSUBSCRIBE", text)
            for text in ("", "true", "True", "1", "false", "0", " true\n")
        ],
    ],
)
def test_policies_are_read_whatever_their_case_and_the_blanks_around(
    container: Container, variable: str, text: str
) -> None:
    env = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", variable: text}
    assert program_output(container, **env) == (f"{1 << 30} {1 << 30} given", "")


DEVICE = f"device {CARDS[0]} memory_bytes {10 * MIB} core_percent 30\n"


@pytest.mark.parametrize(
    "line",
    [
        "policy froce",
        "policy",
        "policy default force",
        "oversubscribe 2",
        "oversubscribe",
        "utilization_switch off",
        "utilization_switch",
        "priority_block yes",
        "priority_block",
    ],
)
def test_a_line_of_the_file_that_cannot_be_read_gives_no_card_and_is_reported(
    container: Container, line: str
) -> None:
    container.limits(f"hami-limits 1\n{DEVICE}{line}\n")
    seen, lines = program_output(container)
    assert seen == NO_CARD
    assert f'"{line}"' in lines
    assert "no device may be used" in lines


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ("memory_bytes 4096 core_percent 30", 4096),
        ("core_percent 30 memory_bytes 0.5G", 512 * MIB),
        ("memory_bytes 4096 core_percent 0 colour blue", 4096),
        ("memory_bytes 4096", 0),
        ("core_percent 30", 0),
        ("memory_byte 4096 core_percent 30", 0),
        ("memory_bytes 4096 cores 30", 0),
        ("memory_bytes many core_percent 30", 0),
        ("memory_bytes -1 core_percent 30", 0),
        ("memory_bytes 50% core_percent 30", 0),
        ("memory_bytes 0.1 core_percent 30", 0),
        ("memory_bytes 1 G core_percent 30", 0),
        ("memory_bytes 4096 core_percent 30%", 0),
        ("memory_bytes 4096 core_percent -1", 0),
        ("memory_bytes 4096 core_percent", 0),
        ("", 0),
    ],
)
def test_a_card_is_given_with_both_of_its_limits_or_not_at_all(
    container: Container, limits: str, total: int
) -> None:
    container.limits(f"hami-limits 1\ndevice {CARDS[0]} {limits}\n")
    seen, lines = program_output(container)
    assert seen == (f"{total} {total} given" if total else NO_CARD)
    assert ("may not be used" in lines) == (total == 0)


def test_a_file_that_is_too_long_gives_no_card(container: Container) -> None:
    remark = "# remark\n"
    container.limits(f"hami-limits 1\n{DEVICE}{remark * (16384 // len(remark))}policy force\n")
    seen, lines = program_output(container)
    assert seen == NO_CARD
    assert "no device may be used" in lines


def test_a_file_that_can_no_longer_be_read_lifts_no_core_limit(container: Container) -> None:
    container.limits("hami-limits 1\n" + DEVICE)
    client = open_context(container.start())
    assert core_percent_in_region(container) == 30
    container.limits(f"hami-limits 1\n{DEVICE}policy froce\n")
    wait_for_total(client, 0)
    assert core_percent_in_region(container) <= 30


def test_the_numbered_variable_beats_the_general_one(container: Container) -> None:
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "10m", "CUDA_DEVICE_MEMORY_LIMIT_1": "20m"}
    client = container.start(**env)
    assert open_context(client, 0).info()[1] == 10 * MIB
    assert open_context(client, 1).info()[1] == 20 * MIB


def test_the_file_beats_the_variables(container: Container) -> None:
    container.limit(7 * MIB)
    client = open_context(container.start(CUDA_DEVICE_MEMORY_LIMIT_0="2000m"))
    assert client.info() == (7 * MIB, 7 * MIB)


def test_a_device_that_the_file_does_not_list_may_not_be_used(container: Container) -> None:
    container.limit(7 * MIB)
    client = open_context(container.start(), 1)
    assert client.info() == (0, 0)
    assert client.alloc(1) == (OUT_OF_MEMORY, POISON)


@pytest.mark.parametrize("text", ["", "hami-limits 2\n", "garbage", "hami-limits 10\n"])
def test_a_file_that_cannot_be_understood_allows_nothing(container: Container, text: str) -> None:
    container.limits(text)
    client = open_context(container.start(CUDA_DEVICE_MEMORY_LIMIT_0="2000m"))
    assert client.alloc(1)[0] == OUT_OF_MEMORY


def test_unknown_lines_and_keys_are_ignored(container: Container) -> None:
    container.limits(
        "hami-limits 1\nfuture thing\n\n# remark\n"
        f"device {CARDS[0]} colour blue memory_bytes 4096 core_percent 50\r\nfolder /x\n"
    )
    assert open_context(container.start()).info()[1] == 4096


def test_a_zero_in_the_file_means_no_limit(container: Container) -> None:
    container.limit(0)
    assert open_context(container.start()).info()[1] == 8192 * MIB


def wait_for_total(client: Client, total: int) -> None:
    """Call until the total has this value; a call reads the file, at most every 10 ms."""
    wait(lambda: client.info()[1] == total, f"the limit to be {total}")


def test_new_limits_reach_a_running_program(container: Container) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    held = client.alloc(8 * MIB)[1]
    container.limit(20 * MIB)
    wait_for_total(client, 20 * MIB)
    assert client.info() == (12 * MIB, 20 * MIB)
    container.limit(4 * MIB)
    wait_for_total(client, 4 * MIB)
    assert client.info() == (0, 4 * MIB)
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.free(held) == 0
    assert client.alloc(4 * MIB)[0] == 0


def test_removing_the_file_lifts_nothing(container: Container) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    (container.folder / "hami/limits").unlink()
    for _ in range(200):
        assert client.info()[1] == 10 * MIB


def test_a_device_is_recognised_by_its_uuid_whatever_the_order(container: Container) -> None:
    container.limits(
        f"hami-limits 1\ndevice {CARDS[1]} memory_bytes {2 * MIB} core_percent 0\n"
        f"device {CARDS[0]} memory_bytes {MIB} core_percent 0\n"
    )
    client = container.start(CUDA_VISIBLE_DEVICES="1,0")
    assert open_context(client, 0).call("uuid", ordinal=0)["uuid"] == CARDS[1]
    assert client.info()[1] == 2 * MIB
    assert open_context(client, 1).info()[1] == MIB


def test_variables_count_in_container_order_whatever_cuda_shows(container: Container) -> None:
    env = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1m", "CUDA_DEVICE_MEMORY_LIMIT_1": "2m"}
    client = container.start(CUDA_VISIBLE_DEVICES=CARDS[1], **env)
    assert open_context(client, 0).info()[1] == 2 * MIB


def name_region(container: Container, limit: int) -> None:
    """The limits as today's agent writes them: with the place of the region."""
    container.limits(
        f"hami-limits 1\ndevice {CARDS[0]} memory_bytes {limit} core_percent 0\n"
        f"region {container.region}\n"
    )


@pytest.mark.parametrize("own", ["", "/nowhere/at/all.cache", "{folder}/one.cache"])
def test_the_file_names_the_place_of_the_region(container: Container, own: str) -> None:
    # With the variable each process had its own region, and so its own slice.
    name_region(container, 10 * MIB)
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": own.format(folder=container.folder)}
    one, two = open_context(container.start(**env)), open_context(container.start())
    assert one.alloc(6 * MIB)[0] == 0
    assert two.info() == (4 * MIB, 10 * MIB)
    assert two.alloc(6 * MIB)[0] == OUT_OF_MEMORY
    assert not (container.folder / "one.cache").exists()


def test_a_file_without_the_region_leaves_it_to_no_variable(container: Container) -> None:
    container.limits(
        f"hami-limits 1\ndevice {CARDS[0]} memory_bytes {10 * MIB} core_percent 0\n",
        with_region=False,
    )
    hami, own = "/tmp/cudevshr.cache", container.folder / "one.cache"
    env = container.env(CUDA_DEVICE_MEMORY_SHARED_CACHE=str(own))
    env["HAMI_PATHMAP"] += f";{hami}={container.region}"
    one, two = (open_context(container.machine.start(env)) for _ in range(2))
    assert one.alloc(6 * MIB)[0] == 0
    assert two.info() == (4 * MIB, 10 * MIB)
    assert container.region.exists()
    assert not own.exists()


LIFTING = {
    "CUDA_DEVICE_MEMORY_LIMIT": "8g",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "8g",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "CUDA_DEVICE_SM_LIMIT_0": "100",
    "CUDA_OVERSUBSCRIBE": "true",
    "CUDA_DISABLE_CONTROL": "true",
    "GPU_CORE_UTILIZATION_POLICY": "disable",
    "ACTIVE_OOM_KILLER": "false",
    "CUDA_REDIRECT": "/nowhere",
    "CUDA_TASK_PRIORITY": "0",
    "LIBCUDA_LOG_LEVEL": "0",
    "RECORD_KERNEL_INTERVAL": "0",
}


@pytest.mark.parametrize("variable", [*LIFTING, "all of them"])
def test_no_variable_lifts_what_the_file_limits(container: Container, variable: str) -> None:
    container.limit(10 * MIB, cores=30)
    env = LIFTING if variable not in LIFTING else {variable: LIFTING[variable]}
    client = open_context(container.start(**env))
    assert client.info() == (10 * MIB, 10 * MIB)
    assert client.alloc(10 * MIB + 1) == (OUT_OF_MEMORY, POISON)
    # The process obeys the values in the region: limit and percentage of device 0.
    with container.region.open("rb") as region:
        region.seek(1600)
        assert int.from_bytes(region.read(8), "little") == 10 * MIB
    assert core_percent_in_region(container) == 30


def variables_read() -> set[str]:
    """Every variable that the library names, by a string literal in the sources."""
    sources = (ROOT / "native/libvgpu/src").rglob("*.c")
    named = re.findall(
        r'"((?:CUDA|GPU|LIBCUDA|RECORD|HAMI|VGPU)_[A-Z_]+)"',
        " ".join(path.read_text() for path in sources),
    )
    return {name for name in named if not name.startswith("CUDA_ERROR")}


def test_the_document_lists_every_variable_that_the_library_reads() -> None:
    document = (ROOT / "docs/libvgpu.md").read_text()
    table = document.split("## Variables", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `([A-Z_]+)", table, re.MULTILINE)) == variables_read()


@pytest.fixture
def installed(container: Container) -> Container:
    """The copy that an agent installs."""
    library = container.folder / "libvgpu.so"
    library.write_bytes(mark_library(LIBVGPU.read_bytes()))
    return replace(container, library=library)


OURS = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2000m"}


def test_the_installed_library_goes_by_its_limits_file(installed: Container) -> None:
    installed.limit(7 * MIB)
    assert open_context(installed.start(**OURS)).info() == (7 * MIB, 7 * MIB)


def hide_the_file(container: Container) -> None:
    (container.folder / "hami/limits").unlink()


def hide_the_directory(container: Container) -> None:
    shutil.rmtree(container.folder / "hami")


def put_a_file_over_the_directory(container: Container) -> None:
    hide_the_directory(container)
    (container.folder / "hami").touch()


def empty(container: Container) -> None:
    (container.folder / "hami/limits").write_text("")


def garble(container: Container) -> None:
    (container.folder / "hami/limits").write_bytes(os.urandom(4096))


def put_a_directory_in_its_place(container: Container) -> None:
    hide_the_file(container)
    (container.folder / "hami/limits").mkdir()


def put_a_loop_in_its_place(container: Container) -> None:
    hide_the_file(container)
    (container.folder / "hami/limits").symlink_to("limits")


@pytest.mark.parametrize(
    "hide",
    [
        hide_the_file,
        hide_the_directory,
        put_a_file_over_the_directory,
        empty,
        garble,
        put_a_directory_in_its_place,
        put_a_loop_in_its_place,
    ],
)
def test_the_installed_library_gives_no_card_without_its_limits_file(
    installed: Container, hide: Callable[[Container], None]
) -> None:
    installed.limit(7 * MIB)
    hide(installed)
    client = open_context(installed.start(**OURS))
    assert client.info() == (0, 0)
    assert client.alloc(1) == (OUT_OF_MEMORY, POISON)
    assert client.call("total_mem")["total"] == 0


def test_a_library_of_ones_own_takes_hamis_variables_without_a_limits_file(
    container: Container,
) -> None:
    assert open_context(container.start(**OURS)).info()[1] == 2000 * MIB


def test_a_region_that_was_scribbled_over_is_made_again_where_the_file_names_it(
    container: Container,
) -> None:
    name_region(container, 10 * MIB)
    one = open_context(container.start())
    assert one.alloc(6 * MIB)[0] == 0
    with container.region.open("r+b") as region:
        region.write(b"\xff" * 4096)
    two = open_context(container.start())
    assert one.alloc(1)[0] == 0  # puts its own share right
    wait_for_free(two, 4 * MIB)


def wait_for_free(client: Client, at_most: int) -> None:
    for _ in range(2000):
        if client.info()[0] <= at_most:
            return
    pytest.fail(f"never were only {at_most} bytes free: {client.info()}")
