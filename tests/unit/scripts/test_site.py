"""The documentation site: links, what a browser would fetch, and a reference that is complete."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hamicommon.k8s.pod_annotations import USER_ANNOTATIONS
from hamicommon.placement.rules import TERMS

from tests.metric_registry import names

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def load_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"scripts/site/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load_module("pages")
SITE = {"helm.md", "k8s/README.md", "adr/0001-x.md", "packing.svg"}


@pytest.mark.parametrize(
    ("page", "text", "turned"),
    [
        ("a.md", "[x](helm.md#values)", "[x](helm.md#values)"),
        ("a.md", "[x](../k8s/README.md#rights)", "[x](k8s/README.md#rights)"),
        ("adr/0001-x.md", "[x](../helm.md)", "[x](../helm.md)"),
        ("k8s/README.md", "[x](../docs/helm.md)", "[x](../helm.md)"),
        ("a.md", "[x](../examples/a.yaml)", "x (`examples/a.yaml`)"),
        ("a.md", "[`Makefile`](../Makefile)", "`Makefile`"),
        ("a.md", "[x](../nothing.md)", "[x](../nothing.md)"),
        ("a.md", "[x](#here) [y](https://example.org/)", "[x](#here) [y](https://example.org/)"),
        ("a.md", "![x](packing.svg)", "![x](packing.svg)"),
        ("a.md", "```\n[x](../Makefile)\n```", "```\n[x](../Makefile)\n```"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(page: str, text: str, turned: str) -> None:
    there = {"examples/a.yaml", "Makefile"}

    found = PAGES.turned_links(
        text, page, is_page=SITE.__contains__, in_repository=there.__contains__
    )

    assert found == turned


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src=//cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        "<link href=https://fonts.example rel=preconnect>",
        '<img alt="x" src="http://pictures.example/x.png">',
        '<iframe src="https://video.example/"></iframe>',
    ],
)
def test_what_a_browser_fetches_from_another_host_is_found(html: str) -> None:
    assert len(list(PAGES.fetched_from_elsewhere(html))) == 1


def test_what_a_reader_may_follow_is_not_fetched() -> None:
    html = (
        '<a href="https://example.org/">x</a><link rel="canonical" href="https://example.org/">'
        '<img src="pictures/x.svg"><script src="assets/x.js"></script>'
    )

    assert list(PAGES.fetched_from_elsewhere(html)) == []
    style = "a { background: url(x.png) } @import 'y.css'; b { src: url('https://f.example/z') }"
    assert list(PAGES.fetched_from_elsewhere(style, style=True)) == ["https://f.example/z"]


def test_pages_of_tasks_come_first_in_the_search() -> None:
    ranks = [PAGES.search_boost(page) for page in ("tasks.md", "sql.md", "adr/0001-x.md")]

    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == 3


def test_the_navigation_names_pages_that_exist() -> None:
    class Loader(yaml.SafeLoader):
        """MkDocs' tags are none of ours."""

    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    named = PAGES.arranged_pages(nav)

    assert len(named) == len(set(named))
    names = ("settings", "metrics", "reasons", "annotations", "hamictl", "api")
    written = {f"reference/{name}.md" for name in names}
    missing = [
        page
        for page in named
        if page not in written and page not in PAGES.OUTSIDE and not (DOCS / page).is_file()
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["slices", "parts", "way-of-a-pod", "states", "truth"])
def test_a_picture_is_described_and_fetches_nothing(name: str) -> None:
    text = (DOCS / "pictures" / f"{name}.svg").read_text()

    assert re.search(r"<title[^>]*>[^<]{5,}</title>", text)
    assert re.search(r"<desc[^>]*>[^<]{20,}</desc>", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert f"pictures/{name}.svg" in (DOCS / "concepts.md").read_text()


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With its neighbours, as when it is the program."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "site")
    return load_module("reference")


def test_the_reference_has_every_setting_with_its_default(reference: Any) -> None:
    page = reference.settings_page()
    settings_page = sys.modules["settings_page"]

    assert "| `HAMI_SCHEDULER_DECISION_DAYS` | integer > 0 | `14` | Days that decisions are" in page
    assert "| `HAMI_POSTGRES_DSN` | secret | **required** |" in page
    for settings in settings_page.SERVICES.values():
        prefix = settings.model_config["env_prefix"]
        for name, field in settings.model_fields.items():
            if not settings_page.is_group(field):
                assert f"`{settings_page.variable_of(prefix, name, field)}`" in page


def test_the_reference_has_every_reason_with_what_helps(reference: Any) -> None:
    page = reference.reasons_page()

    assert "| `CardNotHealth` | unhealthy | unhealthy cards |  | repair the cards | all |" in page
    assert [code for code in TERMS if f"| `{code}` |" not in page] == []


def test_the_reference_has_every_annotation_that_people_write(reference: Any) -> None:
    page = reference.annotations_page()

    assert [row.name for row in USER_ANNOTATIONS if f"| `{row.name}` |" not in page] == []
    assert "`hami.io/grant`" in page


def test_the_reference_has_every_verb_metric_and_path(reference: Any) -> None:
    from hamictl.__main__ import COMMANDS

    verbs, metrics, paths = (
        reference.commands_page(),
        reference.metrics_page(),
        reference.apis_page(),
    )

    assert [name for name in COMMANDS if f"## hamictl {name}\n" not in verbs] == []
    assert [name for name in sorted(names()) if f"`{name}`" not in metrics] == []
    for path in ("GET /v1/nodes", "POST /v1/simulate", "GET /api/v1/showback"):
        assert f"### {path}" in paths
