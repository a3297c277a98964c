"""Records: results as JSON files that say what they hold, and which machine and versions they come from.

Every record is a JSON object. Its ``schema``, such as ``gradwire.train/1``, names its kind and the version of
its fields, which goes up whenever a field changes its name, unit or meaning.
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
    """Return a record with ``fields``; ``machine`` is what else it says of the machine.

    A field of the name ``machine`` stands in place of this machine's description.
    """
    return {
        "schema": schema,
        "machine": describe_machine(**machine),
        "versions": describe_versions(),
        **fields,
    }


def to_json(record: Mapping[str, object]) -> str:
    """Return the record as readable JSON; NaN and infinity, for which JSON has no word, become null."""
    return json.dumps(_finite(record), indent=2, allow_nan=False) + "\n"


def read_object(text: str, called: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is. Raises ``SpecError``, which calls it ``called``."""
    try:
        values = _loaded(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"expected a JSON object for {called}, got no JSON: {_why(error)}") from error
    if not isinstance(values, dict):
        raise SpecError(f"expected a JSON object for {called}, got a {type(values).__name__}")
    return values


def read_record(path: Path, schema: str, called: str, remedy: str) -> dict[str, Any]:
    """Return the fields of a record that this gradwire or an older one wrote.

    Raises ``SpecError`` for a file that is missing, is no JSON, or holds something else or something newer.

    Parameters
    ----------
    path
        The file.
    schema
        The newest schema of this kind that can be read.
    called
        What errors call such a record, such as "line rate".
    remedy
        How one is written.
    """
    try:
        record = _loaded(read_text(path))
    except OSError as error:
        raise SpecError(f"the {called} {path} cannot be read: {error.strerror or error}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the {called} {path} is no JSON: {_why(error)}") from error
    found = record.get("schema") if isinstance(record, dict) else None
    kind, version = _parts(schema)
    found_kind, found_version = _parts(found)
    if found_kind != kind:
        raise SpecError(f"{path} is no {called}: its schema must be {schema}, but is {shown(found)}")
    if found_version > version:
        raise SpecError(
            f"{path} was written by a newer gradwire: its schema is {shown(found)[1:-1]}, but {schema} is "
            "the newest that can be read; install that gradwire"
        )
    return dict(record)


def _loaded(text: str) -> Any:
    """Parse JSON. Raises ``ValueError``, also for half of a character, which no file can hold."""
    values: Any = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"it holds a lone surrogate ({error.object[error.start]!a}), which is no character"
    return str(error)


def _parts(schema: object) -> tuple[str, int]:
    """Return kind and version; ``("", 0)`` for what is no schema."""
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
