"""The share of a norm that was lost: which steps are samples, and what a ledger makes of them."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs import parse
from gradwire.sync.layout import Layout
from gradwire.sync.ledger.lost import ErrorSums, is_rounding, sampled, share_of


def test_samples_come_early_and_then_rarely() -> None:
    steps = [step for step in range(1, 300) if sampled(step)]
    assert steps == [2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert sum(map(sampled, range(10_000, 16_400))) == 100


@pytest.mark.parametrize(
    ("own", "lost", "share"), [(4.0, 1.0, 0.5), (0.0, 0.0, 0.0), (9.0, 0.0, 0.0), (0.0, 2.0, None)]
)
def test_a_share_is_a_quotient_of_norms(own: float, lost: float, share: float | None) -> None:
    assert share_of(own, lost) == share


def test_a_layout_that_repeats_adds_the_parts_up() -> None:
    layout = Layout(("w", "b"), (3, 1), (0, 0), copies=2)
    norms = layout.norms
    assert norms.count == 8
    norms.own += 1.0
    norms.lost[:] = norms.lost.new_tensor([1.0, 10.0, 100.0, 1000.0])
    found = ErrorSums.of(layout, norms.sums)
    assert found.sums[:2].tolist() == [[2.0, 2.0], [101.0, 1010.0]]
    assert (found.own, found.lost) == (4.0, 1111.0)
    norms.clear()
    assert found.sums[0].tolist() == [2.0, 2.0], "a copy"


@pytest.mark.parametrize(
    ("spec", "scale", "rounding"),
    [
        ("quantize:8", 1.0, True),
        ("quantize:4", 1.0, True),
        ("errbound:rel=0.25", 1.0, True),
        ("errbound:2^-10", 1e-2, True),
        ("errbound:2^-10", 1e-4, False),
        ("inceptionn:2^-10", 1e-3, False),
        ("topk:0.01", 1.0, False),
        ("terngrad", 1.0, False),
    ],
)
def test_rounding_is_told_from_values_that_vanish(spec: str, scale: float, rounding: bool) -> None:
    values = scale * torch.randn(4096, generator=torch.Generator().manual_seed(3))
    codec, decoded = parse(spec), torch.empty(4096)
    codec.decode(codec.encode(values), decoded)
    before, after = values.double(), decoded.double()
    lost = before - after
    assert is_rounding(*(float(each.dot(each)) for each in (before, after, lost))) is rounding
    along = float(lost.dot(before) / before.dot(before))
    assert rounding == (along <= 0.25 and bool(lost.norm() <= before.norm()))
