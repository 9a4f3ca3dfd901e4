"""Files that browsers load: ours, or a library's as it was published."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import pytest
from hami_metrics.pages.app import FILES
from hami_metrics.pages.rendering import CONTENT_SECURITY_POLICY, FOLDER, STATIC

VENDORED = {
    # npm htmx.org 2.0.11, dist/htmx.min.js
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    # npm uplot 1.6.32, dist/uPlot.iife.min.js and dist/uPlot.min.css
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
TEMPLATES = sorted(FOLDER.glob("templates/**/*.html"))


def test_vendored_files_are_as_they_were_published() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
    }
    assert found == VENDORED


def test_every_script_and_style_has_an_address_of_its_own_and_nothing_else_has_one() -> None:
    served = {path.relative_to(STATIC).as_posix() for path in FILES.values()}
    assert served == {
        *("charts.js", "hami.css", "hami.js", "icon.svg", "keys.js", "stream.js"),
        *("vendor/htmx.min.js", "vendor/uplot.min.css", "vendor/uplot.min.js"),
    }
    assert {path.name for path in FILES.values()} == set(FILES)


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_no_template_has_a_script_a_style_or_an_address_of_elsewhere(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]  # a Path, of parametrize
    assert not re.search(r"<script(?! defer src=\"/static/)|<style|\sstyle=|\son[a-z]+=", text)
    assert "://" not in text
    assert "|safe" not in text
    assert "autoescape false" not in text


def test_the_policy_allows_nothing_inline_and_nothing_of_elsewhere() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "://" not in CONTENT_SECURITY_POLICY


def test_a_service_whose_pages_nobody_looks_at_loads_nothing_of_them() -> None:
    ask = (
        "import sys, hami_metrics.bootstrap\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jinja2', 'sse_starlette')"
        " or name.startswith('hami_metrics.pages.') and name != 'hami_metrics.pages.entry'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
