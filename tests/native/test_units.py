"""The unit tests of the engine, in C: no driver, no preload."""

import subprocess

from tests.native.machine import ROOT


def test_the_c_unit_tests_pass() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "native/libvgpu", "test"], check=True, timeout=120)
