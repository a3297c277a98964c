from gradwire.codecs import Quantize
from gradwire_gateware.quantize.code import QuantizeLayout


def test_a_chunk_is_counted_in_words_and_bytes() -> None:
    layout = QuantizeLayout.of(Quantize(8, 48), 256, 512)
    assert (layout.bits, layout.lanes, layout.words, layout.nbytes) == (8, 8, 6, 8)
    assert (layout.most_values, layout.most_scales_nbytes, layout.most_codes_nbytes) == (4096, 344, 4096)
    assert (layout.words_of(344), layout.words_of(4096)) == (11, 128)


def test_a_block_is_at_most_a_chunk() -> None:
    layout = QuantizeLayout.of(Quantize(4, 65536), 512, 100)
    assert (layout.lanes, layout.words, layout.most_scales_nbytes, layout.nbytes) == (16, 100, 4, 8)
