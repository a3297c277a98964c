"""Rules that choose a codec by the name of a parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradwire.codecs import Codec, codec_of
from gradwire.errors import SpecError, shown

_KEYS = {"match", "codec"}


@dataclass(frozen=True)
class Rule:
    r"""The codec of the parameters whose names a regular expression matches.

    Parameters
    ----------
    match
        The regular expression for ``re.search``: ``"bias$"``, or ``"^embed\.weight$"`` for one parameter.
    codec
        The codec of their gradients.
    """

    match: str
    codec: Codec

    def holds_for(self, name: str) -> bool:
        """Return whether the rule matches the name of a parameter."""
        return re.search(self.match, name) is not None


def read_rules(rules: object) -> tuple[Rule, ...]:
    """Return the rules of a list of ``{"match": regex, "codec": codec or spec}``.

    Raises ``SpecError``.
    """
    if isinstance(rules, str | Mapping) or not isinstance(rules, Sequence):
        raise SpecError(f'codecs must be a list of {{"match": ..., "codec": ...}}, but is {shown(rules)}')
    return tuple(each if isinstance(each, Rule) else _read(each) for each in rules)


def _read(values: object) -> Rule:
    if not isinstance(values, Mapping) or set(values) != _KEYS:
        raise SpecError(
            f'each of codecs must be like {{"match": "bias$", "codec": "bf16"}}, but one is {shown(values)}'
        )
    match, codec = values["match"], codec_of(values["codec"], "the codec of a rule")
    if not isinstance(match, str) or codec is None:
        raise SpecError(
            f"a rule has a regular expression and a codec, but one is {shown(match)} and {shown(codec)}"
        )
    try:
        re.compile(match)
    except re.error as error:
        raise SpecError(f"{match!r} isn't a regular expression for names of parameters: {error}") from error
    return Rule(match, codec)


def codec_by_name(rules: Iterable[Rule], name: str, otherwise: Codec) -> Codec:
    """Return the codec of the first rule that matches ``name``, or ``otherwise``."""
    return next((rule.codec for rule in rules if rule.holds_for(name)), otherwise)


def check_names(rules: Iterable[Rule], names: Iterable[str]) -> None:
    """Raise ``SpecError`` for a rule that matches no parameter of a model."""
    known = [*names]
    for rule in rules:
        if not any(map(rule.holds_for, known)):
            like = f"; its names are like {known[0]!r}" if known else ""
            raise SpecError(
                f"the plan has {rule.codec} for parameters that match {rule.match!r}, but this model has "
                f"none{like}"
            )
