"""Images made by hand."""

import json
import tarfile
from pathlib import Path

import pytest
from hamilocal.supervisor.plan import ServerError

from tests.real_node.images import with_libraries, write_image


def test_a_program_comes_with_the_libraries_it_loads() -> None:
    files = with_libraries([Path("/bin/bash")])
    names = {Path(path).name for path in files}
    assert {"bash", "libc.so.6"} <= names
    assert any(name.startswith("ld-linux") for name in names)


def test_the_archive_names_its_layer_and_its_command(tmp_path: Path) -> None:
    image = write_image(
        tmp_path / "image.tar",
        name="hami.local/one:1",
        files={"/etc/motd": b"hello", "/bin/bash": Path("/bin/bash")},
        command=["/bin/bash"],
        environment={"PATH": "/bin"},
    )
    with tarfile.open(image) as outer:
        entry = json.load(outer.extractfile("manifest.json"))[0]
        config = json.load(outer.extractfile(entry["Config"]))
        with tarfile.open(fileobj=outer.extractfile(entry["Layers"][0])) as layer:
            assert layer.extractfile("etc/motd").read() == b"hello"
            assert layer.getmember("bin/bash").mode & 0o111
            assert layer.getmember("tmp").mode == 0o1777
    assert entry["RepoTags"] == ["hami.local/one:1"]
    assert (config["config"]["Cmd"], config["config"]["Env"]) == (["/bin/bash"], ["PATH=/bin"])


def test_the_same_files_give_the_same_image(tmp_path: Path) -> None:
    one, two = (
        write_image(tmp_path / name, name="x:1", files={"/a": b"a", "/b": b"b"}, command=["/a"])
        for name in ("one.tar", "two.tar")
    )
    assert one.read_bytes() == two.read_bytes()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="/no/such/file"):
        write_image(
            tmp_path / "x.tar", name="x:1", files={"/a": Path("/no/such/file")}, command=["/a"]
        )
