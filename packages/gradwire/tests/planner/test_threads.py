from __future__ import annotations

import pytest
import torch

from gradwire.planner.calibration import use_threads


def measured(count: int) -> None:
    with use_threads(count):
        assert torch.get_num_threads() == count
        raise ZeroDivisionError


def test_the_number_of_threads_goes_back_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        measured(before + 2)
    assert torch.get_num_threads() == before
