from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from gradwire.codecs import TABLE
from gradwire.codecs.native import NativeCodec
from support.project import ROOT


@pytest.fixture(scope="module")
def golden_lines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_lines", ROOT / "scripts" / "golden_lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_compiled_format_has_lines(golden_lines: ModuleType) -> None:
    compiled = {row.codec._format for row in TABLE if issubclass(row.codec, NativeCodec)}
    assert {line.split()[0] for line in golden_lines.lines()} == compiled


def test_a_line_has_what_was_encoded_and_what_it_decodes_to(golden_lines: ModuleType) -> None:
    for line in golden_lines.lines():
        _, *params, given, payload, decoded = line.split()
        assert len([int(each) for each in params]) == 3
        assert len(given) == len(decoded)
        assert len(given) % 8 == len(payload) % 2 == 0


def test_halves_are_decoded_to_floats_of_the_same_value(golden_lines: ModuleType) -> None:
    line = next(each for each in golden_lines.lines() if each.startswith("bf16 "))
    *_, payload, decoded = line.split()
    words = [payload[i + 2 : i + 4] + payload[i : i + 2] for i in range(0, len(payload), 4)]  # little-endian
    assert decoded == "".join(f"{word}0000" for word in words)
