"""The values of a plan's request and of its choice as JSON, and the kinds in which they are read again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.codecs import Codec
from gradwire.errors import SpecError
from gradwire.fields import Kind, Source, flag, keyed, of, optional, real, rows, whole
from gradwire.fields import line as line_of_text
from gradwire.timing.environment import CodecCost, CodecPoint
from gradwire.timing.line import HostCost, Line, LineRate

SOURCE = Source("a plan's request", "ask for the plan anew")
_INFINITE = "inf"
"""The text of an infinite number, for which JSON has no word."""


def plain(value: object) -> Any:
    """Return a value as JSON holds it; a list of tensors as their number."""
    if isinstance(value, LineRate):
        return plain(value.fields())
    if isinstance(value, (Codec, Path)):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        tensors = sum(hasattr(each, "numel") for each in value)
        return {"tensors": tensors} if tensors else [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return _INFINITE if isinstance(value, float) and value == math.inf else value


def _number(value: object) -> float:
    return math.inf if value == _INFINITE else real()(value)


def _quantity(value: object) -> str | float:
    return line_of_text(value) if isinstance(value, str) and value != _INFINITE else _number(value)


def _path(value: object) -> Path:
    return Path(line_of_text(value))


def _line(value: object) -> Line | LineRate | Path:
    if not isinstance(value, Mapping):
        return _path(value)
    line = of(Line, nbytes_per_s=_number)
    return of(LineRate, line=line)(value) if "points" in value else line(value)


def _gradients(value: object) -> Path:
    if isinstance(value, Mapping):
        raise SpecError("the gradients were tensors of another process, which only their file can repeat")
    return _path(value)


_POINT = of(CodecPoint, largest_error=_number)
KINDS: Mapping[str, Kind[Any]] = MappingProxyType(
    {
        "elsewhere": flag,
        "shared_machine": optional(flag),
        "line": optional(_line),
        "codecs": optional(rows(line_of_text)),
        "algorithms": optional(rows(line_of_text)),
        "pipelines": rows(whole()),
        "rate": optional(_quantity),
        "latency": optional(_quantity),
        "core_rate": optional(_quantity),
        "gradients": optional(_gradients),
        "host": optional(of(HostCost)),
        "costs": optional(keyed(of(CodecCost, points=rows(_POINT), finished=optional(_POINT)))),
    }
)
"""The kinds of the fields that ``PlanRequest.of`` does not read from text by itself."""
