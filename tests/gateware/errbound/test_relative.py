import pytest
import torch

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError
from gradwire.gateware.errbound import relative
from gradwire.gateware.errbound.compressor import ErrBoundCompressor
from support.axi import bench, transfer
from support.hardware_chunks import payload, raw


def test_more_values_than_the_cpu_adds_at_once_are_refused() -> None:
    relative.check(ErrBound(relative=0.05), 65536)
    relative.check(ErrBound(relative=0.05, block=64), 1 << 20)
    with pytest.raises(SpecError, match=r"at most 65536 values, .* got 65544; choose fewer chunk_words"):
        relative.check(ErrBound(relative=0.05), 65544)


def test_blocks_of_sixteen_words_pass_at_a_word_a_cycle() -> None:
    codec, chunk = ErrBound(relative=0.05, block=128), torch.linspace(-1, 1, 8 * 128)
    run = transfer(bench(ErrBoundCompressor, codec, chunk_words=64), [raw(chunk)], expected=2)
    assert run.packets == [payload(codec, half) for half in chunk.chunk(2)]
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99
