"""The table, its documents, and what parse says about names it does not know."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

import gradwire.codecs
from gradwire.codecs import TABLE, Codec, codec_of, parse
from gradwire.codecs.base import Codec as Base
from gradwire.errors import SpecError
from support.project import DOCS

DOCS = DOCS / "codecs"
MODULES = [
    importlib.import_module(f"gradwire.codecs.{module.name}")
    for module in pkgutil.iter_modules(gradwire.codecs.__path__)
    if module.name != "wrappers"
]


def test_every_codec_class_has_a_row() -> None:
    classes = {
        each
        for module in MODULES
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Base) and not inspect.isabstract(each)
    }
    assert classes == {row.codec for row in TABLE}, "add a Row to TABLE in gradwire/codecs/__init__.py"


def test_rows_are_unique_and_agree_with_their_classes() -> None:
    assert len({row.wire_id for row in TABLE}) == len({row.name for row in TABLE}) == len(TABLE)
    assert all(0 <= row.wire_id <= 255 for row in TABLE)
    for row in TABLE:
        assert (row.codec.name, row.codec.wire_id) == (row.name, row.wire_id)
        assert row.codec.EXAMPLES


def test_wire_ids_are_those_of_the_protocol() -> None:
    names = ["identity", "fp16", "bf16", "inceptionn", "errbound", "truncate"]
    names += ["quantize", "bfp", "bitpack", "terngrad", "topk", "lossless", "fp8", "ecsq"]
    assert {row.wire_id: row.name for row in TABLE} == dict(enumerate(names))


def test_exports_are_sorted_and_complete() -> None:
    exported = gradwire.codecs.__all__
    numbered = {name: [part.zfill(2) for part in re.split(r"(\d+)", name)] for name in exported}  # Fp8, Fp16
    assert exported == sorted(
        exported, key=lambda name: (not name.isupper(), name[0].islower(), numbered[name])
    )
    assert {row.codec.__name__ for row in TABLE} < set(exported)
    assert all(hasattr(gradwire.codecs, name) for name in exported)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_codec_has_a_card(row: gradwire.codecs.Row) -> None:
    path = DOCS / f"{row.name}.md"
    assert path.exists(), f"write {path}"
    text = path.read_text()
    assert f"Wire id: {row.wire_id}" in text
    for heading in ("## Formula", "## Payload", "## Bound", "## Non-finite values", "## Ratio", "## Source"):
        assert heading in text, f"{path} has no section {heading!r}"
    worked = doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, path.name, str(path), 0)
    results = doctest.DocTestRunner().run(worked)
    assert results.attempted > 0, f"{path} shows no worked bytes"
    assert results.failed == 0


@pytest.mark.parametrize("module", [gradwire.codecs, *MODULES], ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module: object) -> None:
    assert inspect.ismodule(module)
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_class_has_a_runnable_example(row: gradwire.codecs.Row) -> None:
    card = " ".join((row.codec.__doc__ or "").split())
    assert ">>>" in card
    for word in ("Formula:", "Payload:", "Bound:", "Non-finite values:", "Ratio:"):
        assert word in card, f"the card of {row.name} does not say {word!r}"


def test_parse_returns_codecs() -> None:
    for row in TABLE:
        for spec in row.codec.EXAMPLES:
            codec: Codec = parse(spec)
            assert type(codec) is row.codec
            assert str(codec) == spec


def test_an_unknown_name_lists_the_codecs_and_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown codec 'erbound' .did you mean 'errbound'") as caught:
        parse("erbound:2^-10")
    for row in TABLE:
        assert row.name in str(caught.value)
    with pytest.raises(SpecError, match="unknown codec 'zzzzzz'; choose one of bf16"):
        parse("zzzzzz")
    with pytest.raises(SpecError, match="did you mean 'fp16'"):
        parse("FP16")


@pytest.mark.parametrize("spec", ["fp9", "quantize:99", "fp8,", 9])
def test_the_error_for_an_argument_names_it(spec: str) -> None:
    with pytest.raises(SpecError, match=r"^encoding: "):
        codec_of(spec, "encoding")


@pytest.mark.processes
def test_a_plan_loads_the_codecs_that_it_has() -> None:
    script = "import sys; from gradwire import Plan; Plan.of('quantize:8'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    homes = {f"gradwire.codecs.{row.where.partition(':')[0]}" for row in TABLE}
    assert homes & {*done.stdout.split()} == {"gradwire.codecs.floats", "gradwire.codecs.quantize"}
