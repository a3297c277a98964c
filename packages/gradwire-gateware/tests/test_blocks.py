import sys

import pytest
from amaranth.hdl import Fragment

from gradwire.errors import MissingPackageError, SpecError
from gradwire_gateware.blocks import BLOCKS, build, read_parameters


@pytest.mark.parametrize(
    ("block", "codec", "width", "sentence"),
    [
        ("inceptionn", None, 256, "expected one of the blocks inceptionn-compressor, .*, got 'inceptionn'"),
        ("skid-buffer", None, 128, "skid-buffer: expected words of 256 or 512 bits, got 128"),
        (
            "bfp-compressor",
            None,
            256,
            "bfp-compressor: expected a codec, got none; for example, choose 'bfp:7x16'",
        ),
        ("bfp-compressor", "quantize:8", 256, "expected a codec of bfp, got 'quantize:8'; for example"),
        (
            "bfp-compressor",
            "bfp:7x24",
            512,
            "512 bits: expected a block whose length is a multiple of 16, got",
        ),
        ("bfp-compressor", "bfp:16x16", 256, "bfp: expected 1 to 15 mantissa bits, got 16"),
        ("inceptionn-compressor", "inceptionn:0.1", 256, "a power of two from 2.-20 to 2.-1, got 0.1"),
        ("float-adder", "bfp:7x16", 256, "float-adder: expected no codec, .* omit the codec"),
        ("ring-engine", "fp16", 256, "expected a codec of bfp or inceptionn or identity, got 'fp16'"),
        ("ring-engine", "bfp:7x24", 512, "512 bits: expected a block whose length is a multiple of 16, got"),
        (
            "errbound-compressor",
            "bfp:7x16",
            256,
            "expected a codec of errbound, got 'bfp:7x16'",
        ),
        ("quantize-compressor", "quantize:6", 256, "quantize: expected 4 or 8 bits, got 6; for example"),
        ("quantize-decompressor", "quantize:8,block=24", 256, "a multiple of 16, got 24; for example"),
        ("quantize-compressor", "bfp:7x16", 256, "expected a codec of quantize, got 'bfp:7x16'; for"),
        ("nic", "bfp:7x16", 256, "nic: expected a codec of inceptionn, got 'bfp:7x16'; for example"),
    ],
)
def test_what_hardware_cannot_have_is_refused(
    block: str, codec: str | None, width: int, sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence):
        build(block, codec, width)


@pytest.mark.parametrize(
    ("block", "parameters", "sentence"),
    [
        ("ring-engine", {"ranks": 1}, "ring-engine: expected ranks from 2 to 64, got 1"),
        ("ring-engine", {"chunk_words": 0}, "expected chunk_words from 1 to 16384, got 0"),
        (
            "ring-engine",
            {"chunk_words": 9},
            "chunks of whole blocks of 2 words, got 9 words; round chunk_words up",
        ),
        (
            "ring-engine",
            {"mtu": 9000},
            "ring-engine: expected only ranks, chunk_words, got 'mtu'; omit mtu",
        ),
        ("bfp-compressor", {"ranks": 2}, "bfp-compressor: expected no parameters, got 'ranks'; omit ranks"),
        ("nic", {"mtu": 9001}, "nic: expected mtu from 576 to 9000, got 9001"),
    ],
)
def test_numbers_that_a_block_cannot_take_are_refused(
    block: str, parameters: dict[str, int], sentence: str
) -> None:
    codec = "inceptionn:2^-10" if block == "nic" else "bfp:7x16"
    with pytest.raises(SpecError, match=sentence):
        build(block, codec, 256, parameters)


def test_parameters_are_read() -> None:
    assert read_parameters("ranks=4,chunk_words=512") == {"ranks": 4, "chunk_words": 512}
    for text in ("", "ranks", "ranks=", "ranks=-1", "ranks=2,,", "ranks=\u0664"):
        with pytest.raises(SpecError, match=r"expected parameters such as .*; write NAME=NUMBER"):
            read_parameters(text)


def test_every_block_is_built() -> None:
    examples = {
        "inceptionn": "inceptionn:2^-10",
        "bfp": "bfp:7x16",
        "errbound": "errbound:2^0",
        "quantize": "quantize:4,block=48",
        None: None,
    }
    for name, block in BLOCKS.items():
        made = build(name, examples[block.codec], 512)
        assert type(made).__name__ == block.name
        assert Fragment.get(made, None).subfragments is not None


def test_a_machine_without_amaranth_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gradwire_gateware.ring", raising=False)
    monkeypatch.setitem(sys.modules, "amaranth", None)
    with pytest.raises(MissingPackageError, match=r"needs the package amaranth, .*pip install .*gateware"):
        build("float-adder", None, 256)
