"""Rules of the house that no linter knows."""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("libs", "services")
    for path in (ROOT / folder).glob("*/src/**/*.py")
    if "_generated" not in path.parts
)
# The environment is handed on to children there, never read for a setting.
ENVIRONMENT_PASSED_ON = {"children.py", "processes.py"}
LONGEST_MODULE_LINES = 700
# Each service and tool has one, of which only its own modules know.
ONE_OF_EACH_PACKAGE = {"Settings"}
SILENCES = re.compile(r"# (type: ignore|noqa)")
SILENCES_WITH_REASON = re.compile(r"# (type: ignore\[[a-z, -]+\] +# |noqa: [A-Z0-9, ]+ +[-(]) ?\w")
CATCHES_ALL = re.compile(r"except (Base)?Exception(Group)?( as \w+)?:$")
FORBIDDEN_NAMES = {"utils", "helpers", "manager", "common", "misc"}


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All of the module's tree, the module itself first."""
    return tuple(ast.walk(ast.parse(text_of(path))))


def find_broken(finds: Callable[[Path], object]) -> dict[str, object]:
    """By file: what the rule finds there, where it finds something."""
    return {str(path.relative_to(ROOT)): found for path in SOURCES if (found := finds(path))}


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 150


def test_the_environment_is_read_by_settings_alone() -> None:
    def reads(path: Path) -> list[int]:
        return [
            node.lineno
            for node in nodes_of(path)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr in ("environ", "getenv", "environb")
            and path.name not in ENVIRONMENT_PASSED_ON
        ]

    assert find_broken(reads) == {}


def test_a_module_is_short() -> None:
    assert find_broken(lambda path: text_of(path).count("\n") > LONGEST_MODULE_LINES) == {}


def test_a_module_has_a_name_that_means_something() -> None:
    assert [path for path in SOURCES if path.stem in FORBIDDEN_NAMES] == []


def test_a_module_describes_itself() -> None:
    def silent(path: Path) -> bool:
        module = nodes_of(path)[0]
        assert isinstance(module, ast.Module)
        return path.name != "__init__.py" and not ast.get_docstring(module)

    assert find_broken(silent) == {}


def test_what_silences_a_checker_or_catches_everything_has_a_reason_beside_it() -> None:
    def list_unexplained(path: Path) -> list[str]:
        return [
            line
            for line in text_of(path).splitlines()
            if CATCHES_ALL.search(line)
            or (SILENCES.search(line) and not SILENCES_WITH_REASON.search(line))
        ]

    assert find_broken(list_unexplained) == {}


def test_a_pause_has_a_name() -> None:
    """`sleep(0)` lets others have their turn, and is none."""

    def pauses(path: Path) -> list[str]:
        return [
            ast.unparse(node)
            for node in nodes_of(path)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "sleep"
            and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep")
            and isinstance(node.args[0], ast.Constant)
            and node.args[0].value != 0
        ]

    assert find_broken(pauses) == {}


def test_no_two_packages_have_a_class_of_one_name() -> None:
    packages: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        module = nodes_of(path)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                packages[node.name].add(path.relative_to(ROOT).parts[3])

    shared = {name for name, owners in packages.items() if len(owners) > 1}
    assert shared - ONE_OF_EACH_PACKAGE == set()


def test_no_file_names_a_package_index() -> None:
    hosts = ("pypi" + ".org", "python" + "hosted.org", "registry.npm" + "js", "deb.debian" + ".org")
    kinds = {".txt", ".toml", ".in", ".yaml", ".yml", ".md", ".py"}
    skipped = {".venv", ".git", "build", ".hami"}

    named = [
        str((folder / name).relative_to(ROOT))
        for folder, name in files_below(ROOT, skipped)
        if (Path(name).suffix in kinds or name in ("Makefile", "Dockerfile"))
        and any(host in (folder / name).read_text(errors="replace") for host in hosts)
    ]

    assert named == []


def files_below(root: Path, skipped: set[str]) -> Iterator[tuple[Path, str]]:
    """Folder and name of each file that is in none of the folders of these names."""
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - skipped
        yield from ((Path(folder), name) for name in names)
