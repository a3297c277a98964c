from __future__ import annotations

import pytest

from gradwire.codecs import Fp8, parse
from gradwire.errors import SpecError


def test_what_the_class_says_of_itself() -> None:
    assert Fp8() == Fp8(256) == parse("fp8") == parse("fp8:block=256")
    assert [str(Fp8()), str(Fp8(256)), str(Fp8(1024))] == ["fp8", "fp8", "fp8:block=1024"]
    assert parse("fp8:block=1024") == Fp8(1024)
    assert parse("fp8:block=1024").fingerprint != parse("fp8").fingerprint
    assert (Fp8.wire_id, Fp8.EXACT, Fp8().WANTS_RESIDUAL) == (12, False, False)
    assert Fp8.EXAMPLES == ("fp8", "fp8:block=16", "fp8:block=48", "fp8:block=65536")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("fp8:block=0", "a block of 16 to 65536 values, a multiple of 16, got 0"),
        ("fp8:block=8", "a multiple of 16, got 8"),
        ("fp8:block=24", "a multiple of 16, got 24"),
        ("fp8:block=-16", "a multiple of 16, got -16"),
        ("fp8:block=65552", "a multiple of 16, got 65552"),
        ("fp8:block=x", "a whole number, got 'x'"),
        ("fp8:block=1e3", "a whole number, got '1e3'"),
        ("fp8:block", "fp8: unexpected block"),
        ("fp8:1024", "fp8: unexpected 1024"),
        ("fp8:e4m3", "fp8: unexpected e4m3"),
        ("fp8:block=16,scale=2", "fp8: unexpected scale=2"),
        ("fp8:block=16,fast", "fp8: unexpected fast"),
    ],
)
def test_a_bad_spec_gets_one_sentence(spec: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        parse(spec)
    assert "for example, write 'fp8" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("block", [0, 24, 65552, -16, 256.0, True, "256", None])
def test_the_constructor_refuses_the_same(block: object) -> None:
    with pytest.raises(SpecError, match="a block of 16 to 65536 values, a multiple of 16, got"):
        Fp8(block)  # type: ignore[arg-type]
