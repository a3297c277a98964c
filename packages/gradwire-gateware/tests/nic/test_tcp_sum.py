import random

import pytest

from gradwire_gateware.nic.packets import SUM_AT
from gradwire_gateware.nic.seal import TcpSum
from support.metered import metered
from support.nic_frames import tcp_frame


@pytest.mark.parametrize("width", [256, 512])
def test_the_sum_is_the_checksum(width: int) -> None:
    draw = random.Random(1)
    given, expected = [], []
    for size in (1, 2, 10, 11, 12, 100, 1459, 1460, 8960):
        frame = tcp_frame(draw.choice([draw.randbytes(size), b"\xff" * size]), options=bytes(4 * (size % 11)))
        blank = frame[:SUM_AT] + b"\0\0" + frame[SUM_AT + 2 :]
        given += [(frame, len(frame), 54), (blank + draw.randbytes(size % 50), len(frame), 54)]
        expected += [(0, True), (int.from_bytes(frame[SUM_AT : SUM_AT + 2], "little"), True)]
    assert metered(TcpSum(width), given) == expected


def test_a_wrong_bit_is_seen() -> None:
    frame = tcp_frame(bytes(100))
    given = [frame[:at] + bytes([frame[at] ^ 2]) + frame[at + 1 :] for at in (26, 40, 53, 54, 153)]
    assert all(result for result, _ in metered(TcpSum(256), [(each, 154, 54) for each in given]))
