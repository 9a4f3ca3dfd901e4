"""The pure part of the site's hooks: links of the repository, and a browser's fetches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

OUTSIDE = (
    "k8s/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/directory-plugin/README.md",
    "libs/hamicommon/add-a-rule.md",
    "native/fakegpu/README.md",
    "native/libvgpu/CONFORMANCE.md",
    "native/libvgpu/README.md",
    "tests/README.md",
    "tests/attempts.md",
    "tests/faults/README.md",
    "tests/real_node/README.md",
)
"""Pages elsewhere in the repository than in docs/; on the site they have the same path."""
_FIRST = ("tasks.md", "troubleshooting.md", "operations.md", "quick-start.md", "helm.md")
"""Pages that searching readers usually want."""
_CODE_FOLDERS = ("native/", "tests/", "libs/", "services/")
_LAST = ("adr/", "reference/", "CHANGELOG.md", "CONTRIBUTING.md", *_CODE_FOLDERS)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data|srcset)=["']?"""
    r"""((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)""",
    re.IGNORECASE,
)
_FETCHED_BY_STYLE = re.compile(
    r"""url\(["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""", re.IGNORECASE
)


def turned_links(
    markdown: str,
    page: str,
    *,
    is_page: Callable[[str], bool],
    in_repository: Callable[[str], bool],
) -> str:
    """The text with links between pages of the site.

    `page`: its path on the site. A link to a file of the repository that is no page becomes the
    file's path; one to nothing stays, so that a strict build refuses it.
    """
    here = PurePosixPath(page)
    source = here if page in OUTSIDE else PurePosixPath("docs") / here

    def turn_link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        wanted = PurePosixPath(os.path.normpath(source.parent / path))
        site = wanted.relative_to("docs") if wanted.parts[:1] == ("docs",) else wanted
        if is_page(site.as_posix()):
            relative = os.path.relpath(site, here.parent)
            return f"[{text}]({relative}{'#' + anchor if anchor else ''})"
        if in_repository(wanted.as_posix()):
            return text if f"`{wanted}`" == text else f"{text} (`{wanted}`)"
        return match[0]

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turn_link, part) for part in parts)


def search_boost(page: str) -> float:
    """Factor of the page's rank in the search: tasks first, lists and development last."""
    if page in _FIRST:
        return 4.0
    return 0.2 if page.startswith(_LAST) else 1.0


def fetched_from_elsewhere(text: str, *, style: bool = False) -> Iterator[str]:
    """Addresses of other hosts that a browser fetches automatically to show a page.

    With `style`, of a style sheet. Links that a reader may follow are not included.
    """
    for found in (_FETCHED_BY_STYLE if style else _FETCHED).findall(text):
        yield found[0] or found[1]


def arranged_pages(nav: object) -> list[str]:
    """The pages that MkDocs' `nav` names."""
    if isinstance(nav, str):
        return [nav]
    items = nav if isinstance(nav, list) else list(nav.values()) if isinstance(nav, dict) else []
    return [page for item in items for page in arranged_pages(item)]
