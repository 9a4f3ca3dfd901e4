"""HAMi#727: a version of the library stays as long as an answer may name it."""

from pathlib import Path, PurePosixPath

import pytest
from hami_node_agent.adapters.host.files import HostFiles
from hami_node_agent.cleanup.installed_files import OldLibraries
from hamicommon.errors import Unavailable

from tests.unit.node_agent.library_file import a_library


class Checkpoint:
    """The paths that the kubelet's checkpoint names, or that it can't be read."""

    def __init__(self) -> None:
        self.named: frozenset[str] | None = frozenset()

    async def mounted_paths(self) -> frozenset[str]:
        if self.named is None:
            raise Unavailable("damaged")
        return self.named


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    library = tmp_path / "build.so"
    library.write_bytes(a_library())
    files = HostFiles(
        base=tmp_path / "vgpu",
        state_dir=tmp_path / "state",
        oversubscribe=False,
        container_base=PurePosixPath("/usr/local/vgpu"),
    )
    files.install(library, version="2.0.0", preload_path="/usr/local/vgpu/libvgpu.so")
    for name in ("libvgpu.so.1.0.0", "libvgpu.so", "libvgpu.so.v2.10.0"):
        (files.base / name).touch()
    return files


def there(files: HostFiles) -> set[str]:
    return {path.name for path in files.base.glob("libvgpu.so*")}


HAMIS = {"libvgpu.so", "libvgpu.so.v2.10.0"}
"""Not ours to remove."""


async def test_an_old_version_goes_after_two_looks_without_an_entry(files: HostFiles) -> None:
    libraries = OldLibraries(files, Checkpoint().mounted_paths)

    await libraries.look()
    assert there(files) == HAMIS | {"libvgpu.so.1.0.0", "libvgpu.so.2.0.0"}
    await libraries.look()

    assert there(files) == HAMIS | {"libvgpu.so.2.0.0"}


async def test_a_version_that_an_answer_names_stays(files: HostFiles) -> None:
    checkpoint = Checkpoint()
    checkpoint.named = frozenset({str(files.base / "libvgpu.so.1.0.0")})
    libraries = OldLibraries(files, checkpoint.mounted_paths)

    for _ in range(3):
        await libraries.look()

    assert "libvgpu.so.1.0.0" in there(files)


async def test_while_the_checkpoint_cannot_be_read_nothing_goes(files: HostFiles) -> None:
    checkpoint = Checkpoint()
    libraries = OldLibraries(files, checkpoint.mounted_paths)

    await libraries.look()
    checkpoint.named = None
    await libraries.look()
    checkpoint.named = frozenset()
    await libraries.look()

    assert "libvgpu.so.1.0.0" in there(files)
