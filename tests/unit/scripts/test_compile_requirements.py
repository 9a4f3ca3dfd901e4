"""`scripts/compile-requirements --check`: what an image installs is what the tests ran with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _script() -> ModuleType:
    path = str(ROOT / "scripts" / "compile-requirements")
    spec = spec_from_loader("compile_requirements", SourceFileLoader("compile_requirements", path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _script()


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of requirements/, which the check reads in its place."""
    folder = tmp_path / "requirements"
    shutil.copytree(ROOT / "requirements", folder)
    monkeypatch.setattr(script, "PINS", folder)
    return folder


def _edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def _entry(pins: Path, file: str, package: str) -> str:
    return "".join(script.entries((pins / file).read_text())[package])


def test_the_committed_files_are_parts_of_the_lock() -> None:
    script.check()


def test_another_version_than_the_lock_is_refused(pins: Path) -> None:
    _edit(pins / "metrics.txt", lambda text: re.sub(r"sqlalchemy==\S+", "sqlalchemy==2.0.1", text))

    with pytest.raises(script.Stale, match=r"metrics\.txt has another sqlalchemy than dev\.txt"):
        script.check()


def test_another_hash_than_the_lock_is_refused(pins: Path) -> None:
    _edit(pins / "common.txt", lambda text: re.sub(r"sha256:.", "sha256:g", text, count=1))

    with pytest.raises(script.Stale, match=r"common\.txt has another \S+ than dev\.txt"):
        script.check()


def test_what_a_member_needs_and_its_file_lacks_is_refused(pins: Path) -> None:
    entry = _entry(pins, "scheduler.txt", "mako")
    _edit(pins / "scheduler.txt", lambda text: text.replace(entry, ""))

    with pytest.raises(script.Stale, match=r"scheduler\.txt lacks mako"):
        script.check()


def test_what_no_member_of_an_image_needs_is_refused(pins: Path) -> None:
    entry = _entry(pins, "scheduler.txt", "alembic")
    _edit(pins / "node-agent.txt", lambda text: text + entry)

    with pytest.raises(script.Stale, match=r"node-agent\.txt has alembic: not needed"):
        script.check()


def test_what_all_services_install_for_themselves_is_refused(pins: Path) -> None:
    entry = _entry(pins, "common.txt", "orjson")
    _edit(pins / "common.txt", lambda text: text.replace(entry, ""))
    for name in script.IMAGES:
        _edit(pins / f"{name}.txt", lambda text: text + entry)

    with pytest.raises(script.Stale, match=r"common\.txt lacks orjson"):
        script.check()


def test_a_file_that_is_not_whole_without_the_common_one_is_refused(pins: Path) -> None:
    _edit(pins / "webhook.txt", lambda text: text.removeprefix(script.INCLUDE))

    with pytest.raises(script.Stale, match=r"webhook\.txt does not begin with -r common\.txt"):
        script.check()
