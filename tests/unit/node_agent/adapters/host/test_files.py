import os
import re
from pathlib import Path, PurePosixPath

import pytest
from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.host.files import HostFiles
from hami_node_agent.devices.device_list import ContainerSpec, MountSpec
from hami_node_agent.grants.limits_file import CoreFeedback, HostPid
from hamicommon.errors import InvalidRequest, Unavailable

from tests.unit.node_agent.builders import CARD_A, a_container, a_grant, a_record, a_share
from tests.unit.node_agent.library_file import HEADER, MARKED, a_library

FIRST = a_library(mark=MARKED, behind=b"first build")
SECOND = a_library(mark=MARKED, behind=b"second build")


INSIDE = PurePosixPath("/usr/local/vgpu")


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    return HostFiles(
        base=tmp_path / "hook" / "vgpu",
        state_dir=tmp_path / "state",
        oversubscribe=False,
        container_base=INSIDE,
    )


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libvgpu.so"
    path.write_bytes(FIRST)
    return path


def install(files: HostFiles, library: Path) -> Path:
    return files.install(library, version="1.2", preload_path="/usr/local/vgpu/libvgpu.so")


def test_installing_puts_library_and_preload_list_in_place(
    files: HostFiles, library: Path, tmp_path: Path
) -> None:
    target = install(files, library)

    assert target == tmp_path / "hook/vgpu/libvgpu.so.1.2"
    assert target.read_bytes() == FIRST
    assert (target.parent / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"


def test_the_installed_library_knows_that_it_is_ours(files: HostFiles, library: Path) -> None:
    library.write_bytes(a_library(behind=b"first build"))

    assert install(files, library).read_bytes() == FIRST


@pytest.mark.parametrize("mark", [b"", MARKED * 2])
def test_a_library_that_limits_nothing_without_its_file_is_refused(
    files: HostFiles, library: Path, mark: bytes
) -> None:
    library.write_bytes(a_library(mark=mark))

    with pytest.raises(InvalidRequest, match=r"library_path .*without a limits file"):
        install(files, library)


def test_a_mapped_library_is_never_written_to(files: HostFiles, library: Path) -> None:
    target = install(files, library)
    with target.open("rb") as mapped:
        library.write_bytes(SECOND)

        install(files, library)

        assert mapped.read() == FIRST
    assert target.read_bytes() == SECOND


def test_the_same_library_is_left_alone(files: HostFiles, library: Path) -> None:
    before = install(files, library).stat().st_ino

    assert install(files, library).stat().st_ino == before


def test_a_missing_library_is_named(files: HostFiles, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"library_path .*expected libvgpu\.so"):
        install(files, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            a_library(header=HEADER[:18] + b"\xff" + HEADER[19:]),
            "not a library for this processor",
        ),
        (a_library(header=HEADER[:4] + b"\x01" + HEADER[5:]), "not a library for this processor"),
        (FIRST[:80], "no place for the agent's mark"),
        (b"first build", "not a library for this processor"),
        (b"", "not a library for this processor"),
    ],
)
def test_a_library_that_containers_cannot_load_is_refused_and_the_installed_one_stays(
    files: HostFiles, library: Path, content: bytes, reason: str
) -> None:
    target = install(files, library)
    library.write_bytes(content)

    with pytest.raises(InvalidRequest, match=rf"library_path .*{reason}"):
        install(files, library)

    assert target.read_bytes() == FIRST
    assert {path.name for path in target.parent.iterdir()} == {
        "containers",
        "ld.so.preload",
        target.name,
    }


def test_limits_are_replaced_inside_the_same_directory(files: HostFiles) -> None:
    record = a_record(a_grant(), ids={"x"}, nonce="n")
    files.write_limits(record)
    directory = files.limits_dir("n").stat().st_ino
    changed = a_record(a_grant(a_container(a_share(CARD_A, 1, 2))), ids={"x"}, nonce="n")

    files.write_limits(changed)

    assert files.limits_dir("n").stat().st_ino == directory
    assert f"device {CARD_A} memory_bytes 1048576 core_percent 2" in (
        (files.limits_dir("n") / "limits").read_text()
    )
    assert [path.name for path in files.limits_dir("n").iterdir()] == ["limits"]


def test_a_cache_directory_has_an_empty_region_that_all_may_write_and_nothing_else(
    files: HostFiles, tmp_path: Path
) -> None:
    directory = tmp_path / "hook/vgpu/containers/uid_main"
    files.make_cache_dir("uid_main", "n")
    (directory / "old.cache").write_bytes(b"x")

    files.make_cache_dir("uid_main", "n")

    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {"n.cache": 0o666, "libvgpu.so": 0o644}
    assert {path.stat().st_size for path in directory.iterdir()} == {0}
    assert directory.stat().st_mode & 0o777 == 0o755


def test_what_is_in_a_cache_directory_stays_and_no_link_in_it_is_followed(
    files: HostFiles, tmp_path: Path
) -> None:
    directory = tmp_path / "hook/vgpu/containers/uid_main"
    precious = tmp_path / "precious"
    precious.write_text("x")
    precious.chmod(0o600)
    files.make_cache_dir("uid_main", "n")
    (directory / "n.cache").unlink()
    (directory / "n.cache").symlink_to(precious)
    (directory / "libvgpu.so").unlink()

    files.keep_cache_dir("uid_main", "n")

    assert (precious.read_text(), precious.stat().st_mode & 0o777) == ("x", 0o600)
    assert (directory / "libvgpu.so").exists()


def test_removing_a_pod_follows_no_link_of_the_tenant(files: HostFiles, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    files.make_cache_dir("uid_main", "n")
    containers = tmp_path / "hook/vgpu/containers"
    (containers / "uid_main" / "link").symlink_to(precious)
    files.write_limits(a_record(a_grant(), ids={"x"}, nonce="n"))

    files.remove_pod(["uid_main", ""], ["n"])

    assert (precious / "file").exists()
    assert containers.is_dir()
    assert not (containers / "uid_main").exists()
    assert not files.limits_dir("n").exists()


def test_strays_go_when_they_are_old_and_nobody_knows_them(files: HostFiles) -> None:
    for nonce in ("known", "old", "young"):
        files.write_limits(a_record(a_grant(), ids={"x"}, nonce=nonce))
        # A tenant may date its own directory into the future: that keeps nothing.
        os.utime(files.limits_dir(nonce), (2**33, 2**33))

    files.remove_strays(nonces={"known"}, cache_dirs=set(), older_than_s=300)
    assert files.limits_dir("old").exists()
    files.remove_strays(nonces={"known", "young"}, cache_dirs=set(), older_than_s=-1)

    assert files.limits_dir("known").exists()
    assert files.limits_dir("young").exists()
    assert not files.limits_dir("old").exists()
    assert not files.remove_given_up(5.0)
    assert files.to_remove == 0


def test_what_a_description_mounts_is_no_stray(tmp_path: Path) -> None:
    """A state file was lost: its folders are unknown, and containers use them."""
    cdi = CdiFiles(tmp_path / "cdi")
    files = HostFiles(
        base=tmp_path / "vgpu",
        state_dir=tmp_path / "agent",
        oversubscribe=False,
        container_base=INSIDE,
        cdi=cdi,
    )
    for nonce, folder in (("claimed", "uid_main"), ("nobodys", "other_main")):
        files.write_limits(a_record(a_grant(), ids={"x"}, nonce=nonce))
        files.keep_cache_dir(folder, nonce)
        host = str(tmp_path / "vgpu" / "containers" / folder)
        mounts = (
            MountSpec(container_path=str(INSIDE), host_path=host, read_only=True),
            MountSpec(
                container_path="/etc/hami", host_path=str(files.limits_dir(nonce)), read_only=True
            ),
        )
        cdi.write(nonce, ContainerSpec(envs={}, mounts=mounts))
    assert files.cdi_nonces() == {"claimed", "nobodys"}
    assert cdi.source_of("claimed", str(INSIDE)).endswith("/uid_main")
    assert cdi.source_of("unknown", str(INSIDE)) == ""

    files.remove_strays(nonces={"claimed"}, cache_dirs=set(), older_than_s=-1)

    left = [path.name for path in (tmp_path / "vgpu" / "containers").iterdir()]
    assert "uid_main" in left
    assert "other_main" not in left
    assert files.limits_dir("claimed").exists()
    assert not files.limits_dir("nobodys").exists()
    assert files.cdi_nonces() == {"claimed"}


def test_feedback_changes_two_lines_and_outlives_a_move_of_the_cards(files: HostFiles) -> None:
    record = a_record(a_grant(), ids={"x"}, nonce="n1")
    limits = files.limits_dir("n1") / "limits"
    files.write_limits(record)
    before = limits.read_text()

    files.write_feedback("n1", CoreFeedback(relaxed=True))
    assert limits.read_text() == before + "utilization_switch 0\n"

    files.write_limits(record)
    assert limits.read_text() == before + "utilization_switch 0\n"

    files.write_feedback("n1", CoreFeedback())
    assert limits.read_text() == before


def test_a_block_that_goes_on_is_renewed_in_the_file(files: HostFiles) -> None:
    files.write_limits(a_record(a_grant(), ids={"x"}, nonce="n1"))
    limits = files.limits_dir("n1") / "limits"

    for until_s in (1_800_000_000, 1_800_000_005):
        files.write_feedback("n1", CoreFeedback(waits_until_s=until_s))
        assert limits.read_text().count("priority_block") == 1
        assert limits.read_text().endswith(f"priority_block 1 {until_s}\n")


def test_feedback_and_pids_of_a_container_without_a_directory_make_none(files: HostFiles) -> None:
    files.write_feedback("n1", CoreFeedback(waits_until_s=1_800_000_000))
    files.write_pids("n1", [HostPid(1, 4711, 5)])
    assert not files.limits_dir("n1").exists()

    files.write_limits(a_record(a_grant(), ids={"x"}, nonce="n1"))
    files.write_feedback("n1", CoreFeedback(waits_until_s=1_800_000_000))
    files.write_pids("n1", [HostPid(1, 4711, 5)])
    assert "priority_block 1" in (files.limits_dir("n1") / "limits").read_text()
    assert (files.limits_dir("n1") / "pids").read_text() == "1 4711 5\n"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("libvgpu.so.1.2", b"short"), ("ld.so.preload", b""), ("ld.so.preload", None)],
)
def test_what_somebody_did_to_an_installed_file_is_undone_and_named(
    files: HostFiles, library: Path, name: str, wrong: bytes | None
) -> None:
    path = install(files, library).parent / name
    content, mode = path.read_bytes(), path.stat().st_mode
    assert files.restore_installed() == {}

    if wrong is None:
        path.unlink()
    else:
        path.write_bytes(wrong)
    restored = files.restore_installed()

    assert list(restored) == [path]
    assert (path.read_bytes(), path.stat().st_mode) == (content, mode)
    assert files.restore_installed() == {}


def test_an_installed_file_that_can_not_be_written_again_is_named(
    files: HostFiles, library: Path
) -> None:
    target = install(files, library)
    target.unlink()
    target.mkdir()

    with pytest.raises(Unavailable, match=re.escape(str(target))):
        files.restore_installed()


@pytest.mark.parametrize("wrong", ["", "hami-limits 1\n", None])
def test_limits_of_a_running_container_that_are_others_are_found(
    files: HostFiles, wrong: str | None
) -> None:
    record = a_record(a_grant(), ids={"x"})
    files.write_limits(record)
    path = files.limits_dir(record.nonce) / "limits"
    assert files.wrong_limits([record]) == []

    if wrong is None:
        path.unlink()
    else:
        path.write_text(wrong)

    assert files.wrong_limits([record]) == [record]
    files.write_limits(record)
    files.write_feedback(record.nonce, CoreFeedback(relaxed=True))
    assert files.wrong_limits([record]) == []


def test_a_container_without_a_limits_folder_has_no_wrong_limits(files: HostFiles) -> None:
    assert files.wrong_limits([a_record(a_grant(), ids={"x"})]) == []


def test_a_container_never_starts_with_an_empty_preload_list(
    files: HostFiles, library: Path
) -> None:
    path = install(files, library).parent / "ld.so.preload"
    content = path.read_bytes()
    path.write_bytes(b"")

    files.write_limits(a_record(a_grant(), ids={"x"}))

    assert path.read_bytes() == content
    assert files.restore_installed() == {path: "it was empty"}
    assert files.restore_installed() == {}
