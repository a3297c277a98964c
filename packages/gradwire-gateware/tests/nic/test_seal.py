import random

import pytest

from gradwire._native import _core
from gradwire_gateware.nic.seal import Seal
from support.metered import metered

CODEC = bytes([1, 7, 117, 0])


def crc(frame: bytes, end: int, headers: int) -> int:
    covered = CODEC + frame[26 : headers + 4] + frame[headers + 8 : end]
    return int.from_bytes(_core.crc32c_of_bytes(covered).to_bytes(4, "big"), "little")


@pytest.mark.parametrize("width", [256, 512])
def test_the_result_is_the_software_nics(width: int) -> None:
    draw = random.Random(width)
    given = []
    for headers in range(54, 95, 4):
        for size in (0, 1, 2, 3, 5, draw.randint(6, 80), draw.randint(80, 1000)):
            end = headers + 8 + size
            given.append((draw.randbytes(end + draw.choice([0, 0, 1, 70])), end, headers))
    assert metered(Seal(width, CODEC), given) == [(crc(*each), True) for each in given]
