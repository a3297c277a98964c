from __future__ import annotations

import doctest

import pytest

from gradwire.codecs import TernGrad, TopK, parse, wrappers
from gradwire.codecs.wrappers import CodecWrapper, Projected, Scaled, offloadable
from gradwire.errors import SpecError

MODULES = [wrappers]
REMEDIES = {
    Projected: "offload has no spec; set offload in a plan",
    Scaled: "scale has no spec; set scale in a plan",
}


def test_it_wants_what_its_codec_wants_and_is_named_after_it() -> None:
    inner = offloadable(parse("truncate:16"))
    assert [str(kind(inner)) for kind in REMEDIES] == ["projected:truncate:16", "scaled:truncate:16"]
    for codec in (TopK(0.1), TernGrad(), inner):
        assert Scaled(codec).WANTS_RESIDUAL == codec.WANTS_RESIDUAL


@pytest.mark.parametrize("kind", REMEDIES)
def test_no_spec_names_it(kind: type[CodecWrapper]) -> None:
    with pytest.raises(SpecError, match=REMEDIES[kind]):
        kind.from_spec("", {})
    with pytest.raises(SpecError, match=f"unknown codec '{kind.name}'"):
        parse(f"{kind.name}:truncate:16")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", REMEDIES)
def test_each_has_a_card(kind: type[CodecWrapper]) -> None:
    card = " ".join((kind.__doc__ or "").split())
    for word in (">>>", "Formula:", "Payload:", "Bound:", "Non-finite values:", "Ratio:"):
        assert word in card
