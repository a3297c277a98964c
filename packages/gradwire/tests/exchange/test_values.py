from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import TensorError
from gradwire.exchange.feedback import Residual
from gradwire.exchange.norms import Norms
from gradwire.exchange.request import BucketRequest, CodecValues, check_values
from gradwire.exchange.views import CodecPart, ParameterViews

COUNTS = (3, 64, 5)
FP8, EXACT = parse("fp8"), parse("identity")


def parts() -> tuple[CodecPart, ...]:
    """Return the parts of a bucket whose first and last parameters have fp8, and the other no compression."""
    return ParameterViews(COUNTS, (FP8, EXACT, FP8)).parts


def test_parameters_of_one_codec_are_joined_with_their_residuals_and_norms() -> None:
    bucket, lost = torch.arange(72.0), torch.zeros(72)
    residual = Residual([torch.full((count,), float(count)) for count in COUNTS], lost)
    request = BucketRequest(residual=residual, norms=Norms([0, *accumulate(COUNTS)]))
    fp8, exact = (CodecValues.joined(bucket, request, part) for part in parts())
    assert fp8.tensor.tolist() == [0, 1, 2, 67, 68, 69, 70, 71]
    assert isinstance(fp8.residual, Residual)
    assert torch.cat([*fp8.residual.values]).tolist() == [3] * 3 + [5] * 5
    assert fp8.norms is fp8.ranges
    assert exact.tensor.data_ptr() == bucket[3:].data_ptr(), "a view of the bucket"
    assert exact.norms is None, "a run with an exact codec measures nothing"
    assert exact.ranges is not None
    assert exact.ranges.own.item() == sum(x * x for x in range(3, 67))


def test_copied_values_have_memory_of_their_own_unless_they_are_in_place() -> None:
    bucket = torch.arange(72.0)
    fp8, exact = (CodecValues.copied(bucket, part, torch.empty(part.borders[-1])) for part in parts())
    assert exact.copies is None
    assert exact.tensor.data_ptr() == bucket[3:].data_ptr()
    assert fp8.copies is not None
    fp8.copies.load(0, 8)
    assert fp8.tensor.tolist() == [0, 1, 2, 67, 68, 69, 70, 71]


def test_residual_and_norms_must_match_the_values() -> None:
    check_values(torch.zeros(4), torch.zeros(4), Norms([0, 4]))
    with pytest.raises(TensorError, match="expected a residual of 4 elements"):
        check_values(torch.zeros(4), torch.zeros(3), None)
    with pytest.raises(TensorError, match="expected norms for 4 elements"):
        check_values(torch.zeros(4), None, Norms([0, 3]))
