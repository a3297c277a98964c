from __future__ import annotations

import pytest
import torch

from gradwire.sync.flat.gradients import float_count, float_shape, floats_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_they_are_those_of_the_real_view(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    parameter = torch.zeros(shape, dtype=dtype)
    real = floats_of(parameter)
    assert not real.is_complex()
    assert real.data_ptr() == parameter.data_ptr()
    assert float_shape(parameter) == tuple(real.shape)
    assert float_count(parameter) == real.numel()
