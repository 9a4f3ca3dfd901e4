"""Hands the file's values to the options of verbs, where neither option nor variable is given."""

from __future__ import annotations

from collections import UserDict
from typing import Any

from hamicommon.errors import InvalidRequest

from hamictl.configuration.file import ConfigFile

PARAMETERS = {
    "output": ("output", "answered"),
    "color": ("color",),
    "ascii": ("ascii_only",),
    "utc": ("utc",),
    "namespace": ("namespace",),
}
"""Keys of the file -> the parameters of verbs that take them."""
OF_ONE_NAMESPACE = frozenset(
    {"apply", "delete", "describe", "explain", "fits", "history", "lint", "open", "simulate"}
    | {"trace"}
)
"""Verbs for which a pod without a namespace is of `default`; elsewhere no -n means all."""
OWN_OUTPUT = frozenset({"adopt", "lint", "replay", "simulate", "vendors"})
"""Verbs whose -o has values of its own."""

OPTION_OF_ALL = "help"
"""Asked for as an option of hamictl itself, too, which no verb's values are for."""


def configured() -> ConfigFile:
    """The file. Raises: InvalidRequest."""
    # Here: the list of verbs is written without settings.
    from hamictl.settings import config_file

    return config_file()


class VerbDefaults(UserDict[str, Any]):
    """Verb -> parameter -> value. A file that is wrong has none: the verb reports it."""

    def get(self, key: str, default: Any = None) -> Any:
        """The values for one verb."""
        if key == OPTION_OF_ALL:
            return default
        try:
            options = configured().options
        except InvalidRequest:
            return default
        return {
            parameter: value
            for name, value in options.items()
            if (name != "namespace" or key in OF_ONE_NAMESPACE)
            and (name != "output" or key not in OWN_OUTPUT)
            for parameter in PARAMETERS[name]
        }
