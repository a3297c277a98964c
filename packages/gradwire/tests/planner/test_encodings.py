from __future__ import annotations

import pytest
import torch

from gradwire.codecs import Codec, Identity, parse
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.candidates import offered
from gradwire.planner.encodings import behind_nics
from gradwire.timing.environment import CodecCost, CodecPoint

PROJECTED = Plan(offload="inceptionn:2^-10").encoding


def test_what_is_asked_for_is_offered() -> None:
    assert offered(["bf16", parse("bf16")]) == (Identity(), parse("bf16"))
    assert offered(["bf16"], nic="inceptionn:2^-10") == (Identity(), parse("bf16"), PROJECTED)
    scaled = Plan(parse("errbound:2^-8"), scale="auto").encoding
    assert offered(["bf16", "errbound:2^-8"], "auto")[1:] == (parse("bf16"), parse("errbound:2^-8"), scaled)
    both = Plan(offload="inceptionn:2^-10", scale="auto").encoding
    assert offered([], "auto", "inceptionn:2^-10") == (Identity(), PROJECTED, both)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"scale: expected a codec with an absolute bound, got bf16, quantize:8; add such a codec",
    ):
        offered(["bf16", "quantize:8"], "auto")
    with pytest.raises(SpecError, match="expected None or 'auto' for scale, got 2"):
        offered([], 2)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="expected a codec that NICs can apply"):
        offered([], nic="quantize:8")


@pytest.mark.parametrize("scale", [None, "auto"])
def test_nics_make_less_of_what_leaves_the_host(scale: str | None) -> None:
    encoding: Codec = Plan(offload="inceptionn:2^-10", scale=scale).encoding
    costs = {
        spec: CodecCost(spec, (CodecPoint(1, 4.0, 0, 0, 0), CodecPoint(4, 4.0, 0, 0, 0)))
        for spec in ("identity", str(encoding))
    }
    small = 1e-5 * torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    found = behind_nics(costs, [Identity(), encoding], {1: small, 4: 3e4 * small})
    assert found["identity"] == costs["identity"]
    first, last = found[str(encoding)].points
    assert first.nbytes == last.nbytes == 4.0
    assert last.line_nbytes is not None
    if scale is None:  # below the bound there is nothing left but two bits of each, and packets' headers
        assert first.line_nbytes == pytest.approx(0.25, rel=0.2)
        assert last.line_nbytes > 1
    else:  # in proportion to the largest they are the same
        assert first.line_nbytes == pytest.approx(last.line_nbytes, rel=0.2)
