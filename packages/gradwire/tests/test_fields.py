from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import SpecError, StateError
from gradwire.fields import (
    ABOVE_ZERO,
    Kind,
    Source,
    anything,
    flag,
    keyed,
    line,
    mapping,
    named,
    of,
    one_of,
    only,
    optional,
    pair,
    real,
    rows,
    tensor_of,
    text,
    to_values,
    whole,
)
from gradwire.plan import Plan
from gradwire.timing.line import Line
from support.cases import for_each

SOURCE = Source("the state of a toy", "save it again", StateError)


@dataclass(frozen=True)
class Part:
    size: int
    share: float = 0.5


@dataclass(frozen=True)
class Toy:
    name: str
    parts: tuple[Part, ...]
    colour: Literal["red", "blue"] = "red"
    weights: Mapping[str, float] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    broken: bool = False
    price: float | None = None


TAKEN: list[tuple[Kind[Any], list[Any]]] = [
    (whole(), [0, 1 << 62]),
    (whole(-2, 2), [-2, 2]),
    (real(), [0, -1.5, 1e308, 10**300]),
    (real(0.0, finite=False), [0, 1.0, math.inf, math.nan]),
    (flag, [True, False]),
    (text, ["", "two\nlines", "\u00e9"]),
    (line, ["", "one line", "\u00e9"]),
    (one_of(1, "a", None), [1, "a", None]),
    (optional(whole()), [None, 3]),
    (keyed(whole()), [{}, {"a": 1, "a\n": 2}]),
    (named(["a", "b"], ["a"]), [{"a": 1}, {"a": 1, "b": None}]),
    (anything, [None, object()]),
]
REFUSED: list[tuple[Kind[Any], list[Any], str]] = [
    (whole(), [-1, 1.0, True, "1", None, 1 << 63, math.nan], "a whole number of at least 0"),
    (whole(8, 32), [7, 33], "a whole number from 8 to 32"),
    (real(), [math.nan, math.inf, 10**400, "1", None, False, 1j], "a finite number"),
    (real(ABOVE_ZERO), [0, 0.0, -1.0, math.nan], "a finite number above 0"),
    (real(0, 1), [-0.1, 1.5], "a finite number from 0 to 1"),
    (real(0.0, finite=False), [-1, -math.inf, 10**400], "a number of at least 0"),
    (flag, [0, "true", None], "true or false"),
    (text, ["\ud800", b"a", 3], "a string"),
    (line, ["a\x1b[31m", "a\n", "\ud800", 3], "a line of printable characters"),
    (one_of(1, 2), [True, 1.0, 3, "1", [1]], "one of 1, 2"),
    (rows(whole()), [3, {}, "ab", None], "a list"),
    (rows(whole(), 2), [[], [1], [1, 2, 3]], "a list of 2"),
    (mapping, [[], None, 3], "an object with named fields"),
    (mapping, [{1: 2}, {"\ud800": 2}, {None: 2}], "strings as names"),
    (named(["a", "b"], ["a"]), [{}, {"b": 1}, {"a": 1, "c": 2}], "the fields a, b"),
    (named(()), [{"a\x1b": 1}], "no fields"),
    (
        tensor_of(torch.float32, 2, None),
        [torch.ones(2)],
        "a torch.float32 tensor of shape (2, any) on the CPU",
    ),
]


@for_each("kind, values", TAKEN)
def test_what_is_of_a_kind_comes_back(kind: Kind[Any], values: list[Any]) -> None:
    assert [repr(SOURCE.read(each, kind)) for each in values] == [*map(repr, values)]


@for_each("kind, values, wanted", REFUSED)
def test_what_is_not_is_refused_in_one_sentence(kind: Kind[Any], values: list[Any], wanted: str) -> None:
    for value in values:
        with pytest.raises(StateError) as caught:
            SOURCE.read(value, kind)
        sentence = str(caught.value)
        assert sentence.startswith(f"expected {wanted} for the state of a toy, got "), sentence
        assert sentence.endswith("; save it again")
        assert sentence.isprintable()


def test_a_tensor_is_dense_and_on_the_cpu_and_has_its_type_and_shape() -> None:
    kind, good = tensor_of(torch.float32, 2, None), torch.ones(2, 3)
    assert SOURCE.read(good, kind) is not None
    assert SOURCE.read(torch.ones(5), tensor_of()).numel() == 5
    wrong = [good.double(), good.to("meta"), good.to_sparse(), good[0], good.t(), good[None], good.tolist()]
    for each in wrong:
        with pytest.raises(StateError, match=r"expected a torch.float32 tensor of shape"):
            SOURCE.read(each, kind)
    with pytest.raises(StateError, match=r"got a torch.float64 tensor of shape \(2, 3\) on cpu"):
        SOURCE.read(good.double(), kind)
    asks = torch.nn.Parameter(good)
    assert not SOURCE.read(asks, kind).requires_grad


def test_a_dataclass_is_read_by_its_annotations() -> None:
    whole_toy = {
        "name": "bear",
        "parts": [{"size": 3}, {"size": 4, "share": 1}],
        "colour": "blue",
        "weights": {"head": 1.5},
        "lines": [{"latency_s": 0.1, "nbytes_per_s": 5.0}],
        "broken": True,
        "price": None,
    }
    found = SOURCE.of_json(json.dumps(whole_toy), of(Toy))
    parts, lines = (Part(3), Part(4, 1)), (Line(0.1, 5.0),)
    assert found == Toy("bear", parts, "blue", {"head": 1.5}, lines, broken=True, price=None)
    assert SOURCE.read({"name": "bear", "parts": []}, of(Toy)) == Toy("bear", ())
    for change, reason in (
        (
            {"parts": [{"size": 3}, {"size": -4}]},
            r"at least 0 for parts\[1\]\.size in the state of a toy, got -4; save",
        ),
        ({"parts": [{}]}, r"the fields size, share for parts\[0\] in .*, got no field 'size'"),
        ({"colour": "green"}, "one of 'red', 'blue' for colour in .*, got 'green'"),
        ({"weights": {"head": "x"}}, r"a finite number for weights\.head in .*, got 'x'"),
        (
            {"lines": [{"latency_s": -1, "nbytes_per_s": 1}]},
            r"a finite number of at least 0 for lines\[0\]\.latency_s in the state of a toy, got -1",
        ),
        ({"price": True}, "a finite number for price in .*, got True"),
        ({"other": 1}, "got the unknown field 'other'"),
        ({"weights": {"a\n": "x"}}, r"for weights\.'a\\n' in"),
    ):
        with pytest.raises(StateError, match=reason):
            SOURCE.read(whole_toy | change, of(Toy))
    assert SOURCE.read({"size": 3, "weight": 5}, only(["size"], of(Part))) == Part(3)
    with pytest.raises(StateError, match="got no field 'share'"):
        SOURCE.read({"size": 3}, of(Part, "size", "share"))
    with pytest.raises(TypeError, match="unsupported field annotation"):
        of(Odd)


@dataclass(frozen=True)
class Odd:
    what: int | str


class Level(Enum):
    HIGH = "high"


def test_the_values_of_a_dataclass_are_read_back() -> None:
    lines = (Line(0.1, 5.0),)
    toy = Toy("bear", (Part(3), Part(4, 1.0)), "blue", {"head": 1.5}, lines, broken=True, price=2.0)
    values = to_values(toy)
    assert SOURCE.of_json(json.dumps(values), of(Toy)) == toy
    assert values["parts"] == [{"size": 3, "share": 0.5}, {"size": 4, "share": 1.0}]


def test_an_enumerated_name_becomes_its_value_and_a_codec_its_spec() -> None:
    plan = Plan(parse("fp8"), codecs=[{"match": "bias$", "codec": "identity"}])
    values = to_values({"level": Level.HIGH, "codecs": [parse("fp8"), None], "plan": plan})
    assert (values["level"], values["codecs"]) == ("high", [str(parse("fp8")), None])
    assert values["plan"] == json.loads(plan.to_json())
    assert Plan.from_values(values["plan"]) == plan


def test_an_error_names_the_outermost_source_and_the_way_to_the_field() -> None:
    inner = Source("a part", "make it anew")
    kind = pair(whole(), lambda each: inner.read(each, keyed(parse)))
    with pytest.raises(SpecError, match=r"^codec in a part cannot be used: unknown codec 'x'; .*; make it"):
        inner.read({"codec": "x"}, keyed(parse))
    with pytest.raises(
        StateError, match=r"^\[1\]\.codec in the state of a toy cannot be used: unknown codec .*; save"
    ):
        SOURCE.read([3, {"codec": "x"}], kind)


def test_fields_are_read_one_by_one() -> None:
    given = SOURCE.fields({"size": 3, "codec": "fp8"}, "size", "codec", "speed")
    assert given.get("size", whole()) == 3
    assert given.get("codec", parse) == parse("fp8")
    assert given.get("speed", real(), 1.5) == 1.5
    with pytest.raises(
        StateError, match="expected a value for speed in the state of a toy, got nothing; save it"
    ):
        given.get("speed", real())
    with pytest.raises(StateError, match="got the unknown field 'size'"):
        SOURCE.fields({"size": 3}, "speed")


@pytest.mark.parametrize("words", ["", "{", 5, None, "[" * 100_000, "1" * 5000])
def test_what_is_no_json_is_refused(words: object) -> None:
    with pytest.raises(StateError, match=r"expected .* for the state of a toy, got .*; save it again"):
        SOURCE.of_json(words, mapping)
