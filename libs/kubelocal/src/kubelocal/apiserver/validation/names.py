"""The grammars of names: what is wrong with one, in the real server's text.

Each function returns the complaints; an empty list means that the name is fine.
Source: apimachinery `util/validation`.
"""

from __future__ import annotations

import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SERVICE = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_ENV = "[-._a-zA-Z][-._a-zA-Z0-9]*"


def dns_label(name: str) -> list[str]:
    return _check(
        name,
        63,
        _LABEL,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
        f"regex used for validation is '{_LABEL}')",
    )


def dns_subdomain(name: str) -> list[str]:
    return _check(
        name,
        253,
        _SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        f"regex used for validation is '{_SUBDOMAIN}')",
    )


def service_name(name: str) -> list[str]:
    return _check(
        name,
        63,
        _SERVICE,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
        "an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        f"'abc-123', regex used for validation is '{_SERVICE}')",
    )


def path_segment(name: str) -> list[str]:
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{each}'" for each in ("/", "%") if each in name]


def env_name(name: str) -> list[str]:
    return _check(
        name,
        None,
        _ENV,
        "a valid environment variable name must consist of alphabetic characters, digits, '_', "
        "'-', or '.', and must not start with a digit (e.g. 'my.env-name',  or 'MY_ENV.NAME',  "
        f"or 'MyEnvName1', regex used for validation is '{_ENV}')",
    )


def label_value(value: str) -> list[str]:
    return _check(
        value,
        63,
        _VALUE,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
        "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        f"'my_value',  or '12345', regex used for validation is '{_VALUE}')",
    )


def qualified(name: str) -> list[str]:
    """`[prefix/]name`, as the keys of labels and the names of resources are."""
    prefix, slash, rest = name.rpartition("/")
    if name.count("/") > 1:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{_QUALIFIED}') with an optional DNS "
            "subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    complaints = []
    if slash and not prefix:
        complaints.append("prefix part must be non-empty")
    elif slash:
        complaints += [f"prefix part {text}" for text in dns_subdomain(prefix)]
    if not rest:
        return [*complaints, "name part must be non-empty"]
    pattern = (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex "
        f"used for validation is '{_QUALIFIED}')"
    )
    return complaints + [
        text if text == pattern else f"name part {text}"
        for text in _check(rest, 63, _QUALIFIED, pattern)
    ]


def _check(name: str, limit: int | None, pattern: str, sentence: str) -> list[str]:
    complaints = []
    if limit is not None and len(name) > limit:
        complaints.append(f"must be no more than {limit} bytes")
    if re.fullmatch(pattern, name) is None:
        complaints.append(sentence)
    return complaints
