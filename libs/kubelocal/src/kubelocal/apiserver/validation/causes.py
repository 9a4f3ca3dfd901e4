"""The sentences of broken rules, as apimachinery's `field` package writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kubelocal.apiserver.errors import Cause


def required(field: str, detail: str = "") -> Cause:
    text = f"Required value: {detail}" if detail else "Required value"
    return Cause(field=field, reason="FieldValueRequired", message=text)


def invalid(field: str, value: Any, detail: str) -> Cause:
    text = f"Invalid value: {json.dumps(value)}: {detail}"
    return Cause(field=field, reason="FieldValueInvalid", message=text)


def duplicate(field: str, value: Any) -> Cause:
    text = f"Duplicate value: {json.dumps(value)}"
    return Cause(field=field, reason="FieldValueDuplicate", message=text)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    choices = ", ".join(json.dumps(each) for each in supported)
    text = f"Unsupported value: {json.dumps(value)}: supported values: {choices}"
    return Cause(field=field, reason="FieldValueNotSupported", message=text)


def missing(field: str, value: Any) -> Cause:
    text = f"Not found: {json.dumps(value)}"
    return Cause(field=field, reason="FieldValueNotFound", message=text)


def forbidden(field: str, detail: str) -> Cause:
    return Cause(field=field, reason="FieldValueForbidden", message=f"Forbidden: {detail}")


def too_long(field: str, limit: int) -> Cause:
    text = f"Too long: must have at most {limit} bytes"
    return Cause(field=field, reason="FieldValueTooLong", message=text)
