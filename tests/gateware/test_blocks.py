import sys

import pytest
from amaranth.hdl import Fragment

from gradwire.errors import MissingPackageError, SpecError
from gradwire.gateware.blocks import BLOCKS, build


@pytest.mark.parametrize(
    ("block", "codec", "width", "sentence"),
    [
        ("inceptionn", None, 256, "gateware has the blocks inceptionn-compressor, .*, but got 'inceptionn'"),
        ("skid-buffer", None, 128, "skid-buffer has words of 256 or 512 bits, but got 128; choose one"),
        ("bfp-compressor", None, 256, "bfp-compressor wants a codec; for example, choose 'bfp:7x16'"),
        ("bfp-compressor", "quantize:8", 256, "wants a codec of bfp, but got 'quantize:8'; for example"),
        ("bfp-compressor", "bfp:7x24", 512, "512 bits wants a block of a multiple of 16 values, but got"),
        ("bfp-compressor", "bfp:16x16", 256, "bfp wants 1 to 15 mantissa bits, but got 16"),
        ("inceptionn-compressor", "inceptionn:0.1", 256, "a power of two from 2.-20 to 2.-1, but got 0.1"),
        ("float-adder", "bfp:7x16", 256, "float-adder is the same for every codec, .* leave the codec out"),
    ],
)
def test_what_hardware_cannot_have_is_refused(
    block: str, codec: str | None, width: int, sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence):
        build(block, codec, width)


def test_every_block_is_built() -> None:
    examples = {"inceptionn": "inceptionn:2^-10", "bfp": "bfp:7x16", None: None}
    for name, block in BLOCKS.items():
        made = build(name, examples[block.codec], 512)
        assert type(made).__name__ == block.name
        assert Fragment.get(made, None).subfragments is not None


def test_a_machine_without_amaranth_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gradwire.gateware.adder", raising=False)
    monkeypatch.setitem(sys.modules, "amaranth", None)
    with pytest.raises(MissingPackageError, match=r"needs the package amaranth, .*pip install .*gateware"):
        build("float-adder", None, 256)
