"""The unit tests of the engine, in C: no driver, no preload; and again under sanitizers."""

import subprocess

import pytest

from tests.native.machine import ROOT


def make(*targets: str) -> None:
    subprocess.run(
        ["make", "-s", "-j2", "-C", ROOT / "native/libvgpu", *targets], check=True, timeout=250
    )


def test_the_c_unit_tests_pass() -> None:
    make("test")


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_the_engine_and_the_fuzz_targets_are_clean_under_sanitizers(sanitizer: str) -> None:
    make(f"sanitize-{sanitizer}", "FUZZ_RUNS=10000")
