"""Records: results as JSON files, with their schema, the machine, and the versions of packages.

Every record is a JSON object. The field ``schema``, such as ``gradwire.train/1``, names the kind of record
and the version of its fields. The version increases whenever a field's name, unit or meaning changes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.errors import SpecError, shown
from gradwire.files import read_text
from gradwire.machine import describe_machine, describe_versions
from gradwire.units import parse_whole

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def make_record(schema: str, fields: Mapping[str, object], **machine: object) -> dict[str, object]:
    """Return a record with ``fields``; ``machine`` adds facts to the description of the machine.

    A field named ``machine`` in ``fields`` replaces this description.
    """
    return {
        "schema": schema,
        "machine": describe_machine(**machine),
        "versions": describe_versions(),
        **fields,
    }


def to_json(record: Mapping[str, object]) -> str:
    """Convert a record to readable JSON. NaN and infinity, which JSON can't represent, become null."""
    return json.dumps(_finite(record), indent=2, allow_nan=False) + "\n"


def read_object(text: str, called: str) -> dict[str, Any]:
    """Return the JSON object in ``text``. Raises ``SpecError``, in which ``called`` names the text."""
    try:
        values = _loaded(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"expected a JSON object for {called}, got invalid JSON: {_why(error)}; pass a JSON object"
        ) from error
    if not isinstance(values, dict):
        raise SpecError(
            f"expected a JSON object for {called}, got a {type(values).__name__}; pass an object with fields"
        )
    return values


def read_record(path: Path, schema: str, called: str, remedy: str) -> dict[str, Any]:
    """Return the fields of a record that this or an older version of gradwire has written.

    ``schema`` is the newest schema that this version can read, such as ``gradwire.train/1``; ``called`` names
    the kind of record in errors, and ``remedy`` the command that writes such a record. Raises ``SpecError``
    for a file that is missing, isn't JSON, or has a different kind or a newer schema.
    """
    try:
        record = _loaded(read_text(path))
    except OSError as error:
        raise SpecError(f"the {called} {path} cannot be read: {error.strerror or error}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the {called} {path} is not valid JSON: {_why(error)}; {remedy}") from error
    found = record.get("schema") if isinstance(record, dict) else None
    kind, version = _parts(schema)
    found_kind, found_version = _parts(found)
    if found_kind != kind:
        raise SpecError(
            f"{path} is not a {called}: expected the schema {schema}, got {shown(found)}; {remedy}"
        )
    if found_version > version:
        raise SpecError(
            f"{path} was written by a newer gradwire: expected at most the schema {schema}, got "
            f"{shown(found)[1:-1]}; install a newer gradwire"
        )
    return dict(record)


def _loaded(text: str) -> Any:
    """Return the value in a JSON text. Raises ``ValueError``, also for a lone surrogate."""
    values: Any = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"it contains a lone surrogate ({error.object[error.start]!a}), which isn't a character"
    return str(error)


def _parts(schema: object) -> tuple[str, int]:
    """Return a schema's kind and version, or ``("", 0)`` for an invalid schema."""
    kind, _, version = schema.rpartition("/") if isinstance(schema, str) else ("", "", "")
    number = parse_whole(version)
    return ("", 0) if number is None else (kind, number)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
