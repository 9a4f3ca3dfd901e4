"""Label and field selectors: text -> predicate, as `labels.Parse` and `fields.ParseSelector` read.

Objects keep their labels and selectable fields as flat maps, so a predicate never opens a body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import ApiError, bad_request

Predicate = Callable[[Mapping[str, str]], bool]
_SET = re.compile(r"(?P<key>[^\s!=<>,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=<>,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!<>,()]*)")
_ORDER = re.compile(r"(?P<key>[^\s!=<>,()]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)")
_EXISTS = re.compile(r"(?P<absent>!)?\s*(?P<key>[^\s!=<>,()]+)")


def everything(labels: Mapping[str, str]) -> bool:
    """Select every object."""
    return True


def parse_labels(text: str) -> Predicate:
    """The predicate of a labelSelector parameter. Raises: ApiError (400) for malformed text."""
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", text)]
    if parts == [""]:
        return everything
    return all_of([_requirement(part) for part in parts])


def parse_fields(text: str, supported: frozenset[str]) -> Predicate:
    """The predicate of a fieldSelector parameter; only `supported` labels may be named.

    Raises: ApiError (400) for malformed text or a label that the resource does not have.
    """
    terms: list[Predicate] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=!]+?)\s*(==|=|!=)(.*)", part.strip())
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        key, operator, value = found.groups()
        if key not in supported:
            raise bad_request(f"field label not supported: {key}")
        terms.append(_differs(key, value) if operator == "!=" else _equals(key, value))
    return all_of(terms)


def from_label_selector(selector: Json | None) -> Predicate:
    """The predicate of a LabelSelector object; None and {} select everything."""
    if not selector:
        return everything
    terms = [_equals(key, value) for key, value in selector.get("matchLabels", {}).items()]
    terms += [_expression(each) for each in selector.get("matchExpressions", [])]
    return all_of(terms)


def all_of(terms: list[Predicate]) -> Predicate:
    """Select objects that every term selects."""
    if not terms:
        return everything
    if len(terms) == 1:
        return terms[0]
    return lambda labels: all(term(labels) for term in terms)


def _requirement(text: str) -> Predicate:
    if found := _SET.fullmatch(text):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return _in(found["key"], values) if found["op"] == "in" else _not_in(found["key"], values)
    if found := _EQUAL.fullmatch(text):
        key, value = found["key"], found["value"]
        return _not_in(key, frozenset({value})) if found["op"] == "!=" else _equals(key, value)
    if found := _ORDER.fullmatch(text):
        return _compares(found["key"], found["op"], int(found["value"]))
    if found := _EXISTS.fullmatch(text):
        return _absent(found["key"]) if found["absent"] else _present(found["key"])
    raise _parse_error(text)


def _parse_error(text: str) -> ApiError:
    tokens = text.split()
    found = tokens[1] if len(tokens) > 1 else text
    return bad_request(
        f"unable to parse requirement: found '{found}', expected: '=', '!=', '==', 'in', notin'"
    )


def _expression(expression: dict[str, Any]) -> Predicate:
    key, operator = expression["key"], expression["operator"]
    values = frozenset(expression.get("values", []))
    match operator:
        case "In":
            return _in(key, values)
        case "NotIn":
            return _not_in(key, values)
        case "Exists":
            return _present(key)
        case "DoesNotExist":
            return _absent(key)
    raise bad_request(f'"{operator}" is not a valid label selector operator')


def _equals(key: str, value: str) -> Predicate:
    return lambda labels: labels.get(key) == value


def _differs(key: str, value: str) -> Predicate:
    return lambda labels: labels.get(key) != value


def _in(key: str, values: frozenset[str]) -> Predicate:
    return lambda labels: labels.get(key) in values


def _not_in(key: str, values: frozenset[str]) -> Predicate:
    return lambda labels: key not in labels or labels[key] not in values


def _present(key: str) -> Predicate:
    return lambda labels: key in labels


def _absent(key: str) -> Predicate:
    return lambda labels: key not in labels


def _compares(key: str, operator: str, bound: int) -> Predicate:
    def compare(labels: Mapping[str, str]) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if operator == ">" else number < bound

    return compare
