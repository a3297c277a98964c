from __future__ import annotations

from typing import Any

import pytest

from gradwire.errors import SpecError
from gradwire.timing.line import LARGE_NBYTES, SMALL_NBYTES, EndCost, FrameCost, HostCost, both_ends


def frame(nbytes: int, frame_s: float, thread: float, beside: float) -> FrameCost:
    return FrameCost(frame_s + thread * nbytes, beside * nbytes)


def test_a_straight_line_is_found_again() -> None:
    found = EndCost.fit(
        frame(SMALL_NBYTES, 1e-4, 5e-9, 2e-9), frame(LARGE_NBYTES, 1e-4, 5e-9, 2e-9), codec_s_per_nbyte=0.0
    )
    assert found.frame_s == pytest.approx(1e-4)
    assert found.s_per_nbyte == pytest.approx(5e-9)
    assert found.beside_s_per_nbyte == pytest.approx(2e-9)


def test_the_codec_is_not_the_frame() -> None:
    small, large = frame(SMALL_NBYTES, 1e-4, 5e-9, 0.0), frame(LARGE_NBYTES, 1e-4, 5e-9, 0.0)
    assert EndCost.fit(small, large, codec_s_per_nbyte=3e-9).s_per_nbyte == pytest.approx(2e-9)
    assert EndCost.fit(small, large, codec_s_per_nbyte=1.0).s_per_nbyte == 0.0
    assert EndCost.fit(large, small, codec_s_per_nbyte=0.0).beside_s_per_nbyte == 0.0


def test_a_host_sends_as_the_sender_and_receives_as_the_receiver() -> None:
    host = both_ends(EndCost(1.0, 2.0, 3.0), EndCost(4.0, 5.0, 6.0), cores=7, ranks_per_machine=8)
    assert host == HostCost(1.0, 4.0, 2.0, 5.0, 4.5, 7, 8)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_costs_are_numbers_from_0_up(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"finite number of at least 0 for send_s in a host's costs"):
        HostCost(send_s=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_cores_are_counted(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"a whole number of at least 1 for cores in a host's costs"):
        HostCost(cores=wrong)
