"""A wrong verb, option or value as one sentence on one line; Typer's own is a box of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

MOST_CHARACTERS = 500
"""Of the sentence: a value that was typed is repeated in it."""
_OF_THE_LIBRARY = "Value error, "
"""Before what is wrong with a choice."""
_ENVIRONMENT = re.compile(r" \(env var: [^)]*\)")


def sentence(error: Any) -> str:
    """What is wrong with which option, and whose help has the right values.

    `error` is an exception of the command-line library, as it was raised while a verb was parsed
    or by the verb itself.
    """
    text = " ".join(_text(error).split()).removesuffix(".")
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}…"
    context = getattr(error, "ctx", None)
    return text if context is None else f"{text} ({context.command_path} --help)"


def _text(error: Any) -> str:
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        return f"there is no option {error.option_name}{_close(error)}"
    # A parameter that is missing has no text of its own.
    if not error.message or hasattr(error, "param_type"):
        return f"{_where(error) or 'an argument'} is missing"
    where = _where(error)
    message = str(error.message).removeprefix(_OF_THE_LIBRARY)
    return f"{where}: {message}" if where else message


def _close(error: Any) -> str:
    """The verb's options whose names are close to the one that was typed."""
    context = error.ctx
    known: list[str] = list(error.possibilities or ())
    if not known and context is not None:
        every = [name for param in context.command.params for name in getattr(param, "opts", ())]
        known = get_close_matches(str(error.option_name), every)
    return f"; did you mean {' or '.join(sorted(known))}?" if known else ""


def _where(error: Any) -> str:
    """`--at`, `--output` or `KIND`: the option by its long name."""
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
