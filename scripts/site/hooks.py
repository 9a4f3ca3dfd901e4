"""Hooks of MkDocs for the needs of our site beside it; `mkdocs.yml` names this file.

Pages from outside docs/ (k8s/README.md, CHANGELOG.md, ...) and the reference that `reference.py`
has written become pages. Links are those of the repository, so that they open there too. The build
fails if a page makes a reader's browser fetch something from another host.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "build" / "reference"

# MkDocs loads this file by its path: its neighbour is no module that could be imported.
_spec = importlib.util.spec_from_file_location("site_pages", Path(__file__).with_name("pages.py"))
assert _spec is not None
assert _spec.loader is not None
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)


def on_config(config: Any) -> Any:
    """Put pages that `nav` does not name at the end of the navigation."""
    arranged = set(pages.arranged_pages(config["nav"]))
    docs = Path(config["docs_dir"])
    found = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    decisions = [page for page in found if page.startswith("adr/")]
    more = [page for page in (*found, *pages.OUTSIDE) if page not in {*arranged, *decisions}]
    config["nav"] += [{"Decisions": decisions}, {"More": more}]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    if not REFERENCE.is_dir():
        raise PluginError(f"{REFERENCE} is not there: `make docs` writes it first")
    added = {name: ROOT / name for name in pages.OUTSIDE}
    added |= {f"reference/{path.name}": path for path in sorted(REFERENCE.glob("*.md"))}
    for name, path in added.items():
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn the repository's links into those of the site, and rank the page in the search."""
    del config
    page.meta.setdefault("search", {})["boost"] = pages.search_boost(page.file.src_uri)
    return str(
        pages.turned_links(
            markdown,
            page.file.src_uri,
            is_page=lambda path: files.get_file_from_path(path) is not None,
            in_repository=lambda path: (ROOT / path).exists(),
        )
    )


def on_post_build(config: Any) -> None:
    """End the build if a page would fetch something from another host."""
    site = Path(config["site_dir"])
    problems = [
        f"{path.relative_to(site)} fetches {address}"
        for kind in ("html", "css")
        for path in sorted(site.rglob(f"*.{kind}"))
        for address in pages.fetched_from_elsewhere(
            path.read_text(errors="replace"), style=kind == "css"
        )
    ]
    if problems:
        raise PluginError("the site is not self-contained:\n" + "\n".join(problems[:20]))
