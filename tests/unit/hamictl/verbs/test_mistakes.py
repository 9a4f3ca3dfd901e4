"""A mistyped argument gets one sentence on one line and status 2: every verb, every option.

Options are enumerated from the verbs themselves. One that accepts every text is in `ANY_TEXT` or
`NAMES_OF_FILES`; a new option that is in neither and accepts a wrong value fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hamictl.__main__ import COMMANDS, app
from hamictl.exit_codes import ExitCode
from hamictl.verbs.lazy import load
from typer.testing import CliRunner, Result

BAD = "BAD value!"
ANY_TEXT = frozenset(
    {
        *("columns", "sort_by", "namespace", "selector", "text", "reason", "kind", "source"),
        *("model", "scheduler_name", "trusted_namespaces", "priority_namespaces", "node"),
        *("external_node", "kubelet_flag", "nodes", "pods", "group_label"),
        *("queue", "cluster_queue", "node_label"),
    }
)
"""Parameters that take any text; an unknown one is not found, or gives no rows."""
NAMES_OF_FILES = frozenset(
    {"file", "cluster", "device_config", "kubeconfig", "spans", "svg", "price_list", "types"}
)
"""A missing file has its own sentence, with status 1 (or 2 for a price list)."""
ARGUMENTS = {
    "get": ["devices"],
    "describe": ["node", "n"],
    "explain": ["p"],
    "trace": ["p"],
    "history": ["node/n"],
    "who": ["n"],
    "delete": ["p"],
    "completion": ["bash"],
    "apply": ["-f", "/nowhere"],
    "replay": ["--nodes", "/nowhere", "--pods", "/nowhere"],
    "scale plan": ["--cluster", "/nowhere"],
    "kueue setup": ["--cluster", "/nowhere"],
}
"""Arguments that a verb needs beside the option under test."""


def parameters() -> Iterator[tuple[str, Any]]:
    for verb, command in COMMANDS.items():
        made = load(verb, command)
        for name, sub in getattr(made, "commands", {}).items():
            yield from ((f"{verb} {name}", parameter) for parameter in sub.params)
        if not hasattr(made, "commands"):
            yield from ((verb, parameter) for parameter in made.params)


VERBS = list(dict.fromkeys(verb for verb, _ in parameters()))
OPTIONS = [
    (verb, parameter)
    for verb, parameter in parameters()
    if parameter.param_type_name == "option" and parameter.name != "help"
]
VALUED = [(verb, option) for verb, option in OPTIONS if not option.is_flag]


def run_verb(verb: str, *more: str) -> Result:
    argv = [*verb.split(), *ARGUMENTS.get(verb, []), *more]
    return CliRunner().invoke(app, argv, prog_name="hamictl")


def one_sentence(done: Result) -> str:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("hamictl: ")
    assert "Usage" not in line
    assert "Value error" not in line
    assert not set(line) & set("╭╮╰╯│─")
    return line


@pytest.fixture(autouse=True)
def nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("KUBECONFIG", "HAMI_SCHEDULER_URL", "HAMI_POSTGRES_DSN", "HAMI_METRICS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HAMI_FOLDER", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_that_there_is_not_names_the_closest(verb: str) -> None:
    done = run_verb(verb, "--no-headres")

    assert done.exit_code == ExitCode.WRONG_USAGE
    line = one_sentence(done)
    assert "no such option --no-headres" in line
    assert line.endswith(f"(hamictl {verb} --help)")


@pytest.mark.parametrize(("verb", "option"), VALUED, ids=lambda each: getattr(each, "name", each))
def test_an_option_without_its_value_is_named(verb: str, option: Any) -> None:
    done = run_verb(verb, option.opts[0])

    assert done.exit_code == ExitCode.WRONG_USAGE
    assert option.opts[0] in one_sentence(done)


@pytest.mark.parametrize(
    ("verb", "option"),
    [(verb, option) for verb, option in VALUED if option.name not in ANY_TEXT | NAMES_OF_FILES],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_wrong_value_is_named_with_its_option(verb: str, option: Any) -> None:
    done = run_verb(verb, option.opts[0], BAD)

    assert done.exit_code == ExitCode.WRONG_USAGE, done.output
    line = one_sentence(done)
    assert BAD in line or any(name in line for name in option.opts), line


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb in ARGUMENTS])
def test_an_argument_that_is_missing_is_named(verb: str) -> None:
    done = CliRunner().invoke(app, verb.split(), prog_name="hamictl")

    # `who` by itself is about all cards, and no system runs.
    status = ExitCode.FAILED if verb == "who" else ExitCode.WRONG_USAGE
    assert done.exit_code == status, done.output
    one_sentence(done)


@pytest.mark.parametrize(
    ("typed_text", "sentence"),
    [
        ("get racks", "KIND: 'racks': use one of nodes, devices, pods, allocations, "),
        ("get devices --at noon", "--at: 'noon' is not a time: use 2h (two hours ago), 14:05, "),
        ("who --since 2h", "THING: a card or node is required with --since and --until, as in `h"),
        ("who n --since", "--since needs a value: start of the period: 2h (two hours ago), "),
        ("get pods --at now", "--at: works with nodes, devices, allocations only"),
        ("get devices --at 2999-01-01", "--at: '2999-01-01' is in the future ("),
        ("get devices -o nope", "--output: 'nope': use table, wide, json, yaml, csv, name or"),
        ("get", "KIND is missing"),
        ("help nothing", "TOPIC: 'nothing': use one of exit-codes, times, output"),
        ("usage --idle --overasked", "--idle: use --idle or --overasked"),
        ("explian", "No such command 'explian'. Did you mean 'explain'"),
        ("top --sort size", "--sort: 'size': use one of node, memory, used, cores, holders"),
        ("top racks", "KIND: 'racks': use one of cards, nodes, pods"),
        ("top nodes --sort holders", "--sort: 'holders': use one of node, memory, used, cores"),
        ("top nodes -n a", "--namespace: nodes have no namespace; use `hamictl top pods -n a`"),
        ("top pods -z", "--problems: works with cards and nodes only"),
        ("up --nodes 1000", "--nodes: "),
        ("up --memory-mib 0", "--memory-mib: "),
        ("up --gpu-policy nope", "--gpu-policy has 'nope': use a comma list of "),
        ("capacity --gpumem 0", "--gpumem: use 1 MiB or more; without the option a pod asks for a"),
        ("drift --limit 0", "--limit: must be greater than or equal to 1"),
        ("doctor foo", "too many arguments: foo (hamictl doctor --help)"),
        ("db chek", "No such command 'chek'."),
    ],
)
def test_the_sentence_has_what_is_wrong_and_what_would_be_right(
    typed_text: str, sentence: str
) -> None:
    done = CliRunner().invoke(app, typed_text.split(), prog_name="hamictl")

    assert done.exit_code == ExitCode.WRONG_USAGE, done.output
    assert sentence in one_sentence(done)


def test_a_value_is_repeated_without_what_a_terminal_would_obey() -> None:
    done = CliRunner().invoke(app, ["get", "pods", "--at", "\x1b]0;x\x07" + "y" * 4000])

    line = one_sentence(done)
    assert line.isprintable()
    assert len(line) < 1000


def test_without_a_verb_the_help_is_shown() -> None:
    for argv in ([], ["db"]):
        done = CliRunner().invoke(app, argv)

        assert done.exit_code == ExitCode.WRONG_USAGE
        assert "Usage" in done.output
