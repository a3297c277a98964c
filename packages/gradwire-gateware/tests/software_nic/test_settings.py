from __future__ import annotations

import pytest

from gradwire.codecs import Inceptionn, Truncate
from gradwire.errors import SpecError
from gradwire_gateware.software_nic.card import Settings, check_offloadable


def test_the_kernel_gets_the_codecs_parameters() -> None:
    assert Settings("inceptionn:2^-10,bounded").kernel == ("inceptionn", 117, 1, 3)
    assert Settings(Truncate(16)).kernel == ("pack", 16, 0, 5)
    assert Settings("bitpack:2").kernel == ("pack", 16, 0, 8)


@pytest.mark.parametrize("spec", ["inceptionn:2^-1", "truncate:1", "truncate:23", "bitpack:2", "bitpack:4"])
def test_elementwise_codecs_may_be_offloaded(spec: str) -> None:
    assert str(check_offloadable(spec)) == spec


@pytest.mark.parametrize(
    "spec",
    ["truncate:24", "bitpack:1", "bfp:7x16", "quantize:8", "errbound:2^-10", "fp8", "lossless", "identity"],
)
def test_other_codecs_may_not(spec: str) -> None:
    with pytest.raises(SpecError, match=r"expected a codec that NICs can apply.*use inceptionn"):
        Settings(spec)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tos": 0}, r"a type of service from 0x04 to 0xff to mark streams, got 0x0"),
        ({"tos": 3}, r"got 0x3"),
        ({"tos": 256}, r"got 0x100"),
        ({"drop": 1.0}, r"expected a share of frames to drop of at least 0 and below 1, got 1"),
        ({"reorder": -0.1}, r"a share of frames to reorder of .*, got -0\.1"),
        ({"reorder": float("nan")}, r"got nan"),
        ({"delay_s": 11.0}, r"of 0 to 10 s, got 11 s"),
        ({"seed": -1}, r"expected a seed of at least 0 and below 2\^64, got -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Settings(Inceptionn(2**-10), **change)  # type: ignore[arg-type]
