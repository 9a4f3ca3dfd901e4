"""Typer group whose commands are imported when called, with options common to all.

The list of verbs has the module and summary of each, so `hamictl --help` imports none of them and a
verb only its own module. The summaries are the first lines of the functions' docstrings; a test
compares them. Help begins with the verb's examples (`examples.py`). Values of the configuration
file apply to options that are set neither on the command line nor by a variable. A wrong verb,
option or value is reported in one sentence on one line.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, get_type_hints

import typer
from hamicommon.errors import InvalidRequest
from typer.core import TyperCommand, TyperGroup

from hamictl.config_file import ConfigFile
from hamictl.exit_codes import ExitCode
from hamictl.output.terminal import Colour, Presentation, present
from hamictl.verbs.examples import EXAMPLES

PARAMETERS = {
    "output": ("output", "answered"),
    "color": ("color",),
    "ascii": ("ascii_only",),
    "utc": ("utc",),
    "namespace": ("namespace",),
}
"""Keys of the configuration file -> the parameters of commands that they set."""
OF_ONE_NAMESPACE = frozenset(
    {"apply", "capacity", "delete", "describe", "explain", "history", "lint", "open", "preempt"}
    | {"simulate", "trace"}
)
"""Commands that without -n use the namespace `default`, not all namespaces."""
OWN_OUTPUT = frozenset({"adopt", "lint", "replay", "simulate", "vendors"})
"""Commands whose -o has other values."""

OPTION_OF_ALL = "help"
"""Option that is also one of hamictl itself, so that no command's values apply to it."""


def read_configuration() -> ConfigFile:
    """Read the configuration file. Raises: InvalidRequest."""
    # Imported here: the list of verbs needs no settings.
    from hamictl.settings import config_file

    return config_file()


class VerbDefaults(UserDict[str, Any]):
    """Command -> parameter -> default value; empty if the file is wrong, which commands report."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the default values of one command."""
        if key == OPTION_OF_ALL:
            return default
        try:
            options = read_configuration().options
        except InvalidRequest:
            return default
        return {
            parameter: value
            for name, value in options.items()
            if (name != "namespace" or key in OF_ONE_NAMESPACE)
            and (name != "output" or key not in OWN_OUTPUT)
            for parameter in PARAMETERS[name]
        }


MAX_CHARACTERS = 500
"""Maximum characters of an error message, because it repeats the user's input."""
_OF_THE_LIBRARY = "Value error, "
"""Prefix of Click's text about a wrong choice, which is cut off."""
_TOO_MANY = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")
_NO_VALUE = re.compile(r"Option '.*' requires an argument\.?")
_ENVIRONMENT = re.compile(r" \(env var: [^)]*\)")


def sentence(error: Any) -> str:
    """Explain which option is wrong, and which help shows the right values.

    `error` is an exception of the command-line library, as it was raised while a verb was parsed
    or by the verb itself.
    """
    text = " ".join(_text(error).split()).removesuffix(".")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}…"
    context = getattr(error, "ctx", None)
    return text if context is None else f"{text} ({context.command_path} --help)"


def _text(error: Any) -> str:
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        return f"no such option {error.option_name}{_close(error)}"
    if _NO_VALUE.fullmatch(str(error.message)):
        return f"{error.option_name} needs a value{_help(error)}"
    # The error of a missing parameter has no text.
    if not error.message or hasattr(error, "param_type"):
        return f"{_where(error) or 'an argument'} is missing"
    where = _where(error)
    message = str(error.message).removeprefix(_OF_THE_LIBRARY)
    message = _TOO_MANY.sub(r"too many arguments: \1", message)
    message = message.replace("Input should be", "must be")
    return f"{where}: {message}" if where else message


def _help(error: Any) -> str:
    """Return the option's help, which describes its values."""
    params = error.ctx.command.params if error.ctx else ()
    found = next((each for each in params if error.option_name in each.opts), None)
    return f": {found.help}" if found is not None and found.help else ""


def _close(error: Any) -> str:
    """Return the command's options with names similar to the typed one."""
    context = error.ctx
    known: list[str] = list(error.possibilities or ())
    if not known and context is not None:
        every = [name for param in context.command.params for name in getattr(param, "opts", ())]
        known = get_close_matches(str(error.option_name), every)
    return f"; did you mean {' or '.join(sorted(known))}?" if known else ""


def _where(error: Any) -> str:
    """Return the name of the wrong parameter: `--at`, `--output` or `KIND`."""
    hint, param = getattr(error, "param_hint", None), getattr(error, "param", None)
    if hint is None and param is not None:
        hint = param.get_error_hint()
        if param.param_type_name == "argument":
            hint = hint.upper()
    if hint is None:
        return ""
    names = hint if isinstance(hint, Sequence) and not isinstance(hint, str) else hint.split(" / ")
    plain = [_ENVIRONMENT.sub("", name).strip("'\"[]") for name in names]
    return next((name for name in plain if name.startswith("--")), plain[0] if plain else "")


PANEL = "Every verb"
HELP_SHOWN = "NoArgsIsHelpError"
"""Name of Click's exception that only shows help; its class is not public in Typer."""
_EXTRA_PACKAGES = {"hamireplay": "replay"}
"""Our packages that commands may need -> the extras that install them."""


def _option(kind: type, name: str, help_text: str, *more: str, **how: Any) -> Any:
    return Annotated[kind, typer.Option(name, *more, help=help_text, rich_help_panel=PANEL, **how)]


_EXTRA: dict[str, tuple[Any, Any]] = {
    "no_headers": (_option(bool, "--no-headers", "print rows without column headers"), False),
    "columns": (
        _option(str, "--columns", "columns to print, in this order (default: all)", metavar="A,B"),
        "",
    ),
    "sort_by": (
        _option(str, "--sort-by", "column to sort by (default: each verb's own)", metavar="COLUMN"),
        "",
    ),
    "color": (
        _option(
            Colour,
            "--color",
            "colours; auto: on a terminal, unless NO_COLOR is set",
            envvar="HAMICTL_COLOR",
        ),
        Colour.AUTO,
    ),
    "ascii_only": (
        _option(bool, "--ascii", "print ASCII characters only", envvar="HAMICTL_ASCII"),
        False,
    ),
    "utc": (_option(bool, "--utc", "times in UTC, not in your zone", envvar="HAMICTL_UTC"), False),
    "quiet": (_option(bool, "--quiet", "print the answer only, no messages", "-q"), False),
}
"""Options of all commands: name -> (annotation, default)."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Description of a command that is not imported yet."""

    target: str
    """Function, or `typer.Typer`, as `module:name`."""
    summary: str
    group: str | None = None
    """Heading under which the help lists the command."""


class VerbCommand(TyperCommand):
    """Command whose help begins with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, and add the command to errors."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as exc:
            exc.__dict__["ctx"] = exc.__dict__.get("ctx") or ctx
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, then Typer's help of the options."""
        if shown := EXAMPLES.get(str(self.name)):
            sys.stdout.write("\n" + "".join(f"  $ {line}\n" for line in shown))
        super().format_help(ctx, formatter)


class LazyGroup(TyperGroup):
    """Group of lazily imported commands, in the order of the help page."""

    commands_by_name: dict[str, LazyCommand]
    renamed: dict[str, str]
    """Old name -> new name; set by the subclass that `lazy_app` creates."""
    _listing = False

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run as Typer does, but print usage errors as one sentence."""
        args = list(sys.argv[1:] if args is None else args)
        if args == ["--version"]:
            args = ["version"]
        given = (args, prog_name, complete_var, False, windows_expand_args)
        if not standalone_mode:
            return super().main(*given, **extra)
        try:
            # A verb returns None; a number is its exit status.
            status = super().main(*given, **extra)
        except typer.TyperException as exc:
            # A group without a verb has already shown its help.
            if type(exc).__name__ != HELP_SHOWN:
                _complain(exc)
            raise SystemExit(exc.exit_code) from None
        raise SystemExit(status or 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names in order."""
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the imported command; while help is written, a placeholder with its summary."""
        found = self.commands_by_name.get(cmd_name)
        if found is None:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=found.summary, rich_help_panel=found.group)
        return load(cmd_name, found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command as Typer does; the error for an unknown one names similar ones."""
        if len(args) == 2 and args[0] == OPTION_OF_ALL and args[1] in self.commands_by_name:
            args = [args[1], "--help"]
        verb = args[0] if args else ""
        if new_name := self.renamed.get(verb):
            if not ctx.resilient_parsing:
                # Imported here: the list of verbs needs no Rich.
                from hamictl.output.terminal import note_renamed

                note_renamed(verb, new_name)
            verb, args = new_name, [new_name, *args[1:]]
        unknown = verb and not verb.startswith("-") and verb not in self.commands_by_name
        if unknown and not ctx.resilient_parsing:
            near = get_close_matches(verb, self.commands_by_name)
            asked = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
            ctx.fail(f"No such command {verb!r}.{asked}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page without importing commands."""
        with self._stand_ins():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return commands that begin so, without importing them."""
        with self._stand_ins():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def _check_configuration() -> None:
    """Exit with a message if `~/.config/hamictl.toml` is wrong."""
    try:
        read_configuration()
    except InvalidRequest as exc:
        _complain(typer.TyperException(str(exc)))
        raise typer.Exit(ExitCode.FAILED) from None


def _complain(error: typer.TyperException) -> None:
    # Imported here: the list of verbs needs no Rich.
    from hamictl.output.terminal import complain

    complain(f"hamictl: {sentence(error)}")


def load(name: str, command: LazyCommand) -> Any:
    """Import a command and make it callable.

    Raises: typer.TyperException if the extra with the verb is not installed.
    """
    module, _, attribute = command.target.partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as exc:
        extra = _EXTRA_PACKAGES.get(exc.name or "")
        if extra is None:
            raise
        raise typer.TyperException(
            f"{name} needs the package {exc.name}, which is not installed: "
            f"pip install 'hamictl[{extra}]'"
        ) from None
    if not isinstance(target, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, cls=VerbCommand)(add_common_options(target))
        target = alone
    made = typer.main.get_command(target)
    made.name = name
    return made


def add_common_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all commands to a command, and apply them when it is called."""
    signature = inspect.signature(verb)
    hints = get_type_hints(verb, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values()]
    added = {name: extra for name, extra in _EXTRA.items() if name not in signature.parameters}

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        _check_configuration()
        chosen = {name: given.pop(name) for name in added}
        # Imported here: the list of verbs needs no Rich.
        from hamictl.output.terminal import console, knows_glyphs

        chosen["ascii_only"] = chosen.get("ascii_only", False) or not knows_glyphs()
        present(_presentation(chosen))

        console.set_up()
        verb(**given)

    extras = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in added.items()
    ]
    run.__dict__["__signature__"] = signature.replace(parameters=[*own, *extras])
    run.__annotations__ = {**hints, **{name: kind for name, (kind, _) in added.items()}}
    return run


def _presentation(chosen: dict[str, Any]) -> Presentation:
    columns = str(chosen.get("columns", ""))
    return Presentation(
        headers=not chosen.get("no_headers", False),
        columns=tuple(name for part in columns.split(",") if (name := part.strip())),
        sort_by=chosen.get("sort_by", ""),
        colour=chosen.get("color", Colour.AUTO),
        ascii_only=chosen.get("ascii_only", False),
        utc=chosen.get("utc", False),
        quiet=chosen.get("quiet", False),
    )


def lazy_app(
    commands: dict[str, LazyCommand],
    summary: str,
    *,
    renamed: dict[str, str],
    epilog: str | None = None,
) -> typer.Typer:
    """Return the application of these commands; `epilog` ends its help."""
    group = type("Commands", (LazyGroup,), {"commands_by_name": commands, "renamed": renamed})
    app = typer.Typer(
        cls=group,
        help=summary,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"default_map": VerbDefaults()},
    )
    app.callback()(lambda: None)
    return app
