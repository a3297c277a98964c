"""Every bad spec gets one sentence that says what was wanted, what came and what to write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs import (
    Bfp,
    BitPack,
    Codec,
    ErrBound,
    Inceptionn,
    Lossless,
    Quantize,
    TernGrad,
    TopK,
    Truncate,
    parse,
)
from gradwire.codecs.spec import split, write_real
from gradwire.errors import SpecError

BAD = {
    "": "a codec such as 'quantize:8' or 'identity', got ''",
    ":8": "'identity', got ':8'",
    "quantize:": "'identity', got 'quantize:'",
    "quantize:8,": "incomplete ''",
    "quantize:8,block=": "incomplete 'block='",
    "quantize:8,=5": "incomplete '=5'",
    "quantize:8,block=16,block=32": "'block' twice",
    "quantize:8,block": "expected a value for 'block', got none; for example, write 'block=1'",
    "quantize:8,blocks=16": "quantize: unexpected blocks=16; for example, write 'quantize:8'",
    "quantize": "quantize: expected 4 or 8 bits after a colon, got none; for example, write 'quantize:8'",
    "quantize:7": "quantize: expected 4 or 8 bits, got 7",
    "quantize:eight": "quantize: expected 4 or 8 bits, got 'eight'",
    "quantize:8,block=24": "multiple of 16, got 24",
    "topk:0_1": "at most 1, got '0_1'; for example, write 'topk:0.01'",
    "topk:\uff11": "at most 1, got",
    "topk: 1": "at most 1, got ' 1'",
    "quantize:8,block=1e3": "a whole number, got '1e3'",
    "identity:1": "identity: unexpected 1; for example, write 'identity'",
    "fp16:x=1": "fp16: unexpected x=1",
    "bf16:fast,now": "bf16: unexpected fast, now",
    "errbound": "or rel= with a share of each chunk's root mean square, after a colon",
    "errbound:0.001": "from 2^-126 to 2^126, got 0.001; for example, write 'errbound:2^-10'",
    "errbound:0.3": "got 0.3; for example, write 'errbound:2^-2'",
    "errbound:2^-127": "for example, write 'errbound:2^-126'",
    "errbound:2^127": "for example, write 'errbound:2^126'",
    "errbound:2^9999": "got '2^9999'",
    "errbound:-1": "got -1.0; for example, write 'errbound:2^-10'",
    "errbound:nan": "got nan; for example, write 'errbound:2^-10'",
    "errbound:inf": "got inf; for example, write 'errbound:2^126'",
    "errbound:tight": "got 'tight'",
    "errbound:2^-10,rel=0.1": "an absolute or a relative bound, got both",
    "errbound:rel=0": "from 2^-24 to 1, got 0.0; for example, write 'errbound:rel=0.05'",
    "errbound:rel=1.5": "from 2^-24 to 1, got 1.5",
    "errbound:rel": "a power of two|after a colon",
    "inceptionn": "after a colon",
    "inceptionn:2^-21": "from 2^-20 to 2^-1, got .*; for example, write 'inceptionn:2^-20'",
    "inceptionn:1": "for example, write 'inceptionn:2^-1'",
    "inceptionn:2^-15,bounded": "2^-14 or more with 'bounded', got '2^-15'",
    "inceptionn:2^-10,bounded=yes": "the flag 'bounded', got 'bounded=yes'",
    "inceptionn:2^-10,bound": "inceptionn: unexpected bound; for example, write",
    "truncate:0": "1 to 31 low bits to drop, got 0",
    "truncate:32": "got 32; for example, write 'truncate:16'",
    "truncate:16.0": "got '16.0'",
    "bitpack:5": "1 to 4 bytes to keep, got 5",
    "bfp:7": "written as 7x16, got '7'; for example, write 'bfp:7x16'",
    "bfp:16x16": "1 to 15 mantissa bits, got 16",
    "bfp:7x12": "multiple of 8, got 12",
    "ecsq": "ecsq: expected a step of 2^-5 to 4 root mean squares after a colon, got none; for example",
    "ecsq:5": "a step of 2^-5 to 4 root mean squares, got 5",
    "ecsq:half": "got 'half'; for example, write 'ecsq:0.5,block=1024'",
    "ecsq:0.5,block=100": "a block that is a power of two from 64 to 65536, got 100",
    "terngrad:7": "terngrad: unexpected 7; for example, write 'terngrad:seed=1'",
    "terngrad:seed=-1": "a seed from 0 to 2^64 - 1, got -1",
    "topk:0": "above 0 and at most 1, got 0.0",
    "topk:1.01": "above 0 and at most 1, got 1.01",
    "lossless:level=0": "a level from 1 to 22, got 0",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_spec_gets_one_sentence(spec: str) -> None:
    wanted = BAD[spec].replace("2^", r"2\^")
    with pytest.raises(SpecError, match=wanted) as caught:
        parse(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ErrBound(),
        lambda: ErrBound(0.001),
        lambda: ErrBound(True),
        lambda: ErrBound(2**-10, relative=0.1),
        lambda: ErrBound(relative=float("nan")),
        lambda: Inceptionn(2**-21),
        lambda: Inceptionn(2**-15, bounded=True),
        lambda: Truncate(16.0),  # type: ignore[arg-type]
        lambda: Truncate(True),
        lambda: BitPack(0),
        lambda: Quantize("8"),  # type: ignore[arg-type]
        lambda: Quantize(8, 1000),
        lambda: Quantize(8, 0),
        lambda: Bfp(0, 16),
        lambda: Bfp(7, 20),
        lambda: TernGrad(2**64),
        lambda: TopK(0),
        lambda: TopK(float("inf")),
        lambda: Lossless(23),
    ],
)
def test_constructors_refuse_the_same(make: Callable[[], Codec]) -> None:
    with pytest.raises(SpecError, match="for example, write"):
        make()


def test_other_ways_to_write_the_same_codec() -> None:
    assert str(parse("errbound:0.0009765625")) == "errbound:2^-10"
    assert parse("errbound:1") == ErrBound(1)
    assert str(parse("errbound:rel=2^-4")) == "errbound:rel=0.0625"
    assert str(parse("quantize:8,block=1024")) == "quantize:8"
    assert str(parse("terngrad:seed=0")) == "terngrad"
    assert str(parse("lossless:level=1")) == "lossless"
    assert str(parse("topk:1e-2")) == "topk:0.01"


def test_split_gives_name_argument_and_options() -> None:
    assert split("a") == ("a", "", {})
    assert split("a:1") == ("a", "1", {})
    assert split("a:1,b=2,c") == ("a", "1", {"b": "2", "c": ""})
    assert split("a:b=2") == ("a", "", {"b": "2"})


@given(st.floats(2**-24, 1.0))
def test_numbers_read_back_as_themselves(value: float) -> None:
    assert float(write_real(value)) == value
    assert parse(str(ErrBound(relative=value))) == ErrBound(relative=value)
    assert parse(str(TopK(value))) == TopK(value)


@given(st.integers(-126, 126))
def test_powers_of_two_read_back_as_themselves(exponent: int) -> None:
    assert str(ErrBound(2.0**exponent)) == f"errbound:2^{exponent}"
    assert parse(f"errbound:2^{exponent}") == ErrBound(2.0**exponent)


@given(st.text(max_size=30))
def test_any_text_is_a_codec_or_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        assert parse(str(parse(text))) == parse(text)


def test_an_error_quotes_any_value_in_one_short_line() -> None:
    class Unfriendly:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for came in (10**5000, "9" * 5000, [[1.0] * 9] * 99, "two\nlines", Unfriendly()):
        for make in (TopK, parse):
            with pytest.raises(SpecError) as caught:
                make(came)  # type: ignore[arg-type]
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 300
