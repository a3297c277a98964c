from __future__ import annotations

import pytest

from gradwire.gpu.words import Tiles


@pytest.mark.parametrize("block", [8, 16, 48, 256, 1024, 1040, 4096, 65536])
@pytest.mark.parametrize("n", [0, 1, 2047, 2049, 100_000])
def test_programs_cover_all_blocks_once(n: int, block: int) -> None:
    tiles = Tiles(n, block)
    _, rows, width = tiles.constants["SHAPE"]
    per_program = rows * block
    assert (tiles.programs - 1) * per_program < n <= tiles.programs * per_program or n == tiles.programs == 0
    assert rows * width <= 4096
    assert tiles.constants["warps"] in (1, 2, 4, 8)
