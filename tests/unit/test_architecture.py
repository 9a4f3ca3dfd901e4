"""Rules of the house that no linter knows."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("libs", "services")
    for path in (ROOT / folder).glob("*/src/**/*.py")
    if "_generated" not in path.parts
)
# The environment is handed on to children there, never read for a setting.
ENVIRONMENT_PASSED_ON = {"children.py", "processes.py"}
LONGEST_MODULE_LINES = 500
MOST_MODULES_IN_A_FOLDER = 12
# Each service and tool has one, of which only its own modules know.
ONE_OF_EACH_PACKAGE = {"Settings"}
SILENCES = re.compile(r"# (type: ignore|noqa)")
SILENCES_WITH_REASON = re.compile(r"# (type: ignore\[[a-z, -]+\] +# |noqa: [A-Z0-9, ]+ +[-(]) ?\w")
CATCHES_ALL = re.compile(r"except (Base)?Exception(Group)?( as \w+)?:$")
FORBIDDEN_NAMES = {"utils", "helpers", "manager", "common", "misc"}


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def calls(path: Path) -> Iterator[ast.Attribute]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 150


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_the_environment_is_read_by_settings_alone(path: Path) -> None:
    if path.name in ENVIRONMENT_PASSED_ON:
        return
    read = [
        node.lineno
        for node in calls(path)
        if isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv", "environb")
    ]

    assert read == []


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_a_module_is_short_describes_itself_and_has_a_name_that_means_something(path: Path) -> None:
    text = path.read_text()

    assert text.count("\n") <= LONGEST_MODULE_LINES
    assert path.stem not in FORBIDDEN_NAMES
    assert path.name == "__init__.py" or ast.get_docstring(ast.parse(text))


def test_a_folder_holds_a_dozen_modules_at_most() -> None:
    held = Counter(path.parent for path in SOURCES if path.name != "__init__.py")

    assert {
        str(folder.relative_to(ROOT)): modules
        for folder, modules in held.items()
        if modules > MOST_MODULES_IN_A_FOLDER
    } == {}


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_what_silences_a_checker_or_catches_everything_has_a_reason_beside_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    silent = [
        line for line in lines if SILENCES.search(line) and not SILENCES_WITH_REASON.search(line)
    ]
    catching = [line for line in lines if CATCHES_ALL.search(line)]

    assert silent + catching == []


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_a_pause_has_a_name(path: Path) -> None:
    """`sleep(0)` lets others have their turn, and is none."""
    pauses = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep")
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value != 0
    ]

    assert pauses == []


def test_no_two_packages_have_a_class_of_one_name() -> None:
    packages: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                packages[node.name].add(path.relative_to(ROOT).parts[3])

    shared = {name for name, owners in packages.items() if len(owners) > 1}
    assert shared - ONE_OF_EACH_PACKAGE == set()


def test_no_file_names_a_package_index() -> None:
    hosts = ("pypi" + ".org", "python" + "hosted.org", "registry.npm" + "js", "deb.debian" + ".org")
    kinds = ("*.txt", "*.toml", "*.in", "*.yaml", "*.yml", "*.md", "*.py", "Makefile", "Dockerfile")
    skipped = {".venv", ".git", "build", ".hami"}

    named = [
        str(path.relative_to(ROOT))
        for kind in kinds
        for path in ROOT.rglob(kind)
        if not skipped & set(path.relative_to(ROOT).parts)
        and any(host in path.read_text(errors="replace") for host in hosts)
    ]

    assert named == []
