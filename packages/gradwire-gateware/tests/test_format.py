import pytest

from gradwire.codecs import Bfp
from gradwire.errors import SpecError
from gradwire_gateware.formats import BfpLayout


def test_a_block_is_counted_in_words() -> None:
    assert BfpLayout.of(Bfp(7, 16), 256) == (7, 8, 2, 8)
    assert BfpLayout.of(Bfp(15, 1024), 512) == (15, 16, 64, 32)
    assert BfpLayout.of(Bfp(1, 8), 256) == (1, 8, 1, 2)


@pytest.mark.parametrize("block", [8, 24, 1016])
def test_a_block_of_half_words_is_refused(block: int) -> None:
    with pytest.raises(
        SpecError, match=f"512 bits: expected a block whose length is a multiple of 16, got 'bfp:7x{block}'"
    ):
        BfpLayout.of(Bfp(7, block), 512)
