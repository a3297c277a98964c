from typing import Any

import pytest

from gradwire_gateware.nic.seal import Seal, TcpSum
from support.metered import metered
from support.nic_frames import tcp_frame


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize("meter", [TcpSum, lambda width: Seal(width, b"abcd")])
def test_the_packet_ends_before_the_frame_or_is_not_whole(meter: Any, width: int) -> None:
    frame = tcp_frame(bytes(range(200)))
    end = len(frame)
    longer = [(frame + b"\xff" * size, end, 54) for size in (0, 1, 2, 31, 32, 33, 200)]
    cut = [(frame[:size], end, 54) for size in (1, 31, 32, 33, 64, end - 1)]
    found = metered(meter(width), longer + cut + longer[:1])
    assert found[:7] == [found[0]] * 7
    assert [is_whole for _, is_whole in found] == [True] * 7 + [False] * 6 + [True]
    assert found[-1] == found[0]
