"""Rules that choose a codec by parameter name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradwire.codecs import Codec, codec_of
from gradwire.errors import SpecError, shown

_KEYS = {"match", "codec"}


@dataclass(frozen=True)
class Rule:
    r"""A codec for all parameters whose names match a regular expression.

    Parameters
    ----------
    match
        The regular expression for ``re.search``: ``"bias$"``, or ``"^embed\.weight$"`` for one parameter.
    codec
        The codec of the matching parameters' gradients.

    Raises ``SpecError`` for any other value.
    """

    match: str
    codec: Codec

    def __post_init__(self) -> None:
        if not isinstance(self.match, str) or not isinstance(self.codec, Codec):
            raise SpecError(
                f"codecs: expected a regular expression and a codec, got {shown(self.match)} and "
                f'{shown(self.codec)}; pass, for example, {{"match": "bias$", "codec": "bf16"}}'
            )
        try:
            re.compile(self.match)
        except re.error as error:
            raise SpecError(
                f"codecs: expected a regular expression for parameter names, got {self.match!r} ({error}); "
                "escape special characters of names with re.escape"
            ) from error

    def holds_for(self, name: str) -> bool:
        """Return whether the rule matches a parameter's name."""
        return re.search(self.match, name) is not None


def read_rules(rules: object) -> tuple[Rule, ...]:
    """Return the rules in a list of ``{"match": regex, "codec": codec or spec}``.

    Raises ``SpecError``.
    """
    if isinstance(rules, str | Mapping) or not isinstance(rules, Sequence):
        raise SpecError(
            f'codecs: expected a list of {{"match": ..., "codec": ...}}, got {shown(rules)}; put rules '
            "into a list"
        )
    return tuple(each if isinstance(each, Rule) else _read(each) for each in rules)


def _read(values: object) -> Rule:
    if not isinstance(values, Mapping) or set(values) != _KEYS:
        raise SpecError(
            f'codecs: expected items such as {{"match": "bias$", "codec": "bf16"}}, got {shown(values)}; '
            'pass exactly the keys "match" and "codec"'
        )
    codec = codec_of(values["codec"], "the codec of a rule")
    return Rule(values["match"], codec)  # type: ignore[arg-type]  # a rule refuses None


def codec_by_name(rules: Iterable[Rule], name: str, otherwise: Codec) -> Codec:
    """Return the codec of the first rule that matches the parameter ``name``, or ``otherwise``."""
    return next((rule.codec for rule in rules if rule.holds_for(name)), otherwise)


def check_names(rules: Iterable[Rule], names: Iterable[str]) -> None:
    """Raise ``SpecError`` for a rule that matches no parameter of a model."""
    known = [*names]
    for rule in rules:
        if not any(map(rule.holds_for, known)):
            like = f" to match names such as {known[0]!r}" if known else ""
            raise SpecError(
                f"rule {rule.match!r} ({rule.codec}): expected matching parameters in this model, got "
                f"none; change the rule{like}"
            )
