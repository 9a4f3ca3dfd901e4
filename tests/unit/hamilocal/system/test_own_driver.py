"""Whether this machine has a driver is known before anything is started."""

from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from hamilocal.system.layout import project, require_driver


def test_a_folder_with_the_drivers_libraries_will_do() -> None:
    require_driver(project().fakegpu)


def test_a_folder_without_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=rf"no NVIDIA driver.*{tmp_path}/libnvidia-ml.so.1"):
        require_driver(tmp_path)


def test_half_a_driver_is_none(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").symlink_to(project().fakegpu / "libnvidia-ml.so.1")

    with pytest.raises(InvalidRequest, match=r"libcuda\.so\.1"):
        require_driver(tmp_path)
