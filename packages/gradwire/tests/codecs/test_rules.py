from __future__ import annotations

import pytest

from gradwire.codecs import Identity, parse
from gradwire.codecs.rules import Rule, check_names, codec_by_name, read_rules
from gradwire.errors import SpecError
from gradwire.fields import to_values

BIASES = {"match": "bias$", "codec": "bf16"}
EMBEDDING = {"match": "^embed", "codec": parse("identity")}
NAMES = ["embed.weight", "embed.bias", "layer.0.weight", "layer.0.bias"]


def test_the_first_rule_that_is_for_a_name_counts() -> None:
    rules = read_rules([BIASES, EMBEDDING])
    codecs = [str(codec_by_name(rules, name, parse("fp8"))) for name in NAMES]
    assert codecs == ["identity", "bf16", "fp8", "bf16"]
    assert codec_by_name([], "layer", Identity()) == Identity()


def test_rules_come_back_from_their_values_and_are_equal_and_hashable() -> None:
    rules = read_rules([BIASES, EMBEDDING])
    again = read_rules(to_values(rules))
    assert again == rules == read_rules(rules) == read_rules((BIASES, rules[1]))
    assert hash(again) == hash(rules)
    assert rules[0] == Rule("bias$", parse("bf16"))
    assert read_rules([]) == ()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("bias$", r"codecs: expected a list of .*, got 'bias\$'; put rules into a list$"),
        (BIASES, "codecs: expected a list"),
        (None, "codecs: expected a list .* got None"),
        (["bias"], "codecs: expected items such as .* got 'bias'; pass exactly the keys"),
        ([{"match": "bias"}], "codecs: expected items such as"),
        ([{**BIASES, "why": ""}], "codecs: expected items such as"),
        ([{"match": 3, "codec": "fp8"}], "codecs: expected a regular expression and a codec, got 3"),
        ([{"match": "b", "codec": None}], "codecs: expected a regular expression and a codec"),
        ([{"match": "b", "codec": "fp9"}], "the codec of a rule: unknown codec 'fp9'"),
        ([{"match": "b", "codec": 9}], "the codec of a rule: expected a codec, its spec or None, got 9"),
        ([{"match": "(b", "codec": "fp8"}], r"a regular expression for parameter names, got '\(b' \("),
    ],
)
def test_what_is_no_rule_is_refused_in_a_sentence(wrong: object, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        read_rules(wrong)
    assert len(str(caught.value).splitlines()) == 1


def test_a_rule_is_refused_like_its_values() -> None:
    with pytest.raises(SpecError, match=r"a regular expression for parameter names, got '\(' \("):
        Rule("(", parse("fp8"))
    with pytest.raises(SpecError, match="a regular expression and a codec, got 'bias' and 'fp8'"):
        Rule("bias", "fp8")  # type: ignore[arg-type]


def test_a_rule_for_no_parameter_is_an_error_that_names_it() -> None:
    check_names(read_rules([BIASES, EMBEDDING]), NAMES)
    check_names([], [])
    wrong = read_rules([BIASES, {"match": "norm", "codec": "fp8"}])
    with pytest.raises(SpecError, match=r"rule 'norm' \(fp8\): expected .* as 'embed\.weight'$"):
        check_names(wrong, NAMES)
    with pytest.raises(SpecError, match=r"in this model, got none; change the rule$"):
        check_names(wrong, [])
