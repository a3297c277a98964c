from __future__ import annotations

import pytest

from gradwire.codecs import TABLE, parse
from gradwire.gpu.table import PLACES, format_of

SPECS = [spec for row in TABLE for spec in row.codec.EXAMPLES]


@pytest.mark.parametrize("spec", [each for each in SPECS if parse(each).ON_CUDA])
def test_payloads_are_as_large_as_the_codec_says(spec: str) -> None:
    codec = parse(spec)
    name, params = codec.compiled  # type: ignore[attr-defined]
    assert name in PLACES
    for n in (0, 1, 1000, (1 << 20) + 3):
        assert format_of(name).max_nbytes(name, n, params) == codec.max_nbytes(n)
