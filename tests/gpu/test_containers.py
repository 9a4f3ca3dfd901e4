"""A slice as containers have it: the library by /etc/ld.so.preload, and a pid namespace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.card import GIB, Card
from tests.native.machine import LIBVGPU

VIEW = Path(__file__).parent / "programs" / "container_view.py"
SLICE = 2 * GIB


@pytest.fixture
def container(card: Card, tmp_path: Path) -> list[str]:
    """A command that runs another one in new namespaces, with our files mounted over it."""
    if os.geteuid() != 0:
        pytest.skip("mounts want root")
    (tmp_path / "hami").mkdir()
    (tmp_path / "hami" / "limits").write_text(
        f"hami-limits 1\npolicy force\noversubscribe 0\ndevice {card.uuid} memory_bytes {SLICE}"
        f" core_percent 0\nregion {tmp_path / 'region.cache'}\n"
    )
    (tmp_path / "preload").write_text(f"{LIBVGPU}\n")
    mounts = (
        f"mkdir -p /etc/hami && touch /etc/ld.so.preload"
        f" && mount --bind {tmp_path / 'hami'} /etc/hami"
        f" && mount --bind {tmp_path / 'preload'} /etc/ld.so.preload"
    )
    return [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        f'{mounts} && exec "$@"',
        "sh",
    ]


def test_a_container_sees_its_slice_and_its_own_processes(container: list[str], card: Card) -> None:
    pytest.importorskip("pynvml")
    done = subprocess.run(
        [*container, sys.executable, str(VIEW)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["refused"] == 2  # CUDA_ERROR_OUT_OF_MEMORY
    assert (seen["total"], seen["smi_mib"]) == (SLICE, SLICE >> 20)
    assert 256 << 20 <= seen["used"] <= SLICE
    assert seen["pids"] == [seen["pid"]]
