"""CRI-O's configuration, read from files as its packages and operators write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hami_node_agent.adapters.kubelet.container_runtime import read_crio_cdi_dirs
from hamicommon.errors import Unavailable

# As `crio config` prints them: every default is there and commented out.
DEFAULTS = """\
[crio]
# root = "/var/lib/containers/storage"
[crio.runtime]
# List of directories to scan for CDI Spec files.
# cdi_spec_dirs = [
#\t"/etc/cdi",
#\t"/var/run/cdi",
# ]
[crio.image]
# pause_command = "/pause"
"""
WITHOUT_RUN = '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n'
WITH_BOTH = '[crio.runtime]\ncdi_spec_dirs = [\n\t"/etc/cdi",\n\t"/run/cdi",\n]\n'
OTHER_KEYS = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'


@pytest.mark.parametrize(
    ("files", "directories"),
    [
        pytest.param({}, ("/etc/cdi", "/var/run/cdi"), id="no files"),
        pytest.param({"crio.conf": DEFAULTS}, ("/etc/cdi", "/var/run/cdi"), id="all defaults"),
        pytest.param({"crio.conf": WITHOUT_RUN}, ("/etc/cdi",), id="main file"),
        pytest.param(
            {"crio.conf": WITHOUT_RUN, "crio.conf.d/10-crio.conf": WITH_BOTH},
            ("/etc/cdi", "/run/cdi"),
            id="drop-in over main file",
        ),
        pytest.param(
            {"crio.conf.d/99-own.conf": WITHOUT_RUN, "crio.conf.d/10-crio.conf": WITH_BOTH},
            ("/etc/cdi",),
            id="later drop-in over earlier one",
        ),
        pytest.param(
            {"crio.conf": WITHOUT_RUN, "crio.conf.d/99-nvidia.toml": OTHER_KEYS},
            ("/etc/cdi",),
            id="drop-in with other keys",
        ),
    ],
)
def test_cri_o_reads_cdi_files_where_its_last_file_puts_them(
    tmp_path: Path, files: dict[str, str], directories: tuple[str, ...]
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    assert read_crio_cdi_dirs(tmp_path) == directories


def test_a_file_that_is_no_toml_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "crio.conf").write_text("cdi_spec_dirs = [")

    with pytest.raises(Unavailable, match=r"crio\.conf can't be read"):
        read_crio_cdi_dirs(tmp_path)
