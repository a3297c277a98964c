from __future__ import annotations

import pytest
import torch

from gradwire.codecs import TABLE, parse
from gradwire.codecs.native import NativeCodec
from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES, hello, nbytes, rank_of

TOKEN = bytes(range(0, 16 * TOKEN_NBYTES, 16))
OFFLOADABLE = [
    spec
    for row in TABLE
    for spec in row.codec.EXAMPLES
    if isinstance(codec := parse(spec), NativeCodec) and codec.is_offloadable
]


def test_who_knows_the_token_is_known_by_its_rank() -> None:
    said = hello(TOKEN, 258)
    assert said == TOKEN + b"\x02\x01\x00\x00"
    assert rank_of(said, TOKEN, range(3, 300)) == 258


def test_everybody_else_is_nobody() -> None:
    said = hello(TOKEN, 2)
    assert rank_of(said, TOKEN, range(3, 9)) is None
    for place in range(nbytes()):
        altered = bytearray(said)
        altered[place] ^= 0x80
        assert rank_of(bytes(altered), TOKEN, range(9)) is None
        assert rank_of(said[:place], TOKEN, range(9)) is None


@pytest.mark.parametrize("spec", OFFLOADABLE)
def test_a_hello_in_floats_survives_every_codec_of_a_nic(spec: str) -> None:
    for rank in (0, 7, 258, 2**32 - 1):
        said = hello(TOKEN, rank, 0x28)
        values = torch.frombuffer(bytearray(said), dtype=torch.float32)
        decoded, codec = torch.empty_like(values), parse(spec)
        codec.decode(codec.encode(values), decoded)
        assert decoded.numpy().tobytes() == said
        assert rank_of(said, TOKEN, range(rank, rank + 1), 0x28) == rank


def test_a_hello_in_other_floats_or_without_them_is_nobodys() -> None:
    said = hello(TOKEN, 2, 0x28)
    assert len(said) == nbytes(0x28) == 4 * 2 * 20
    assert rank_of(said, TOKEN, range(3, 9), 0x28) is None
    assert rank_of(hello(TOKEN, 2), TOKEN, range(9), 0x28) is None
    assert rank_of(said[:20], TOKEN, range(9)) is None
    for place in range(nbytes(0x28)):
        altered = bytearray(said)
        altered[place] ^= 0x80
        assert rank_of(bytes(altered), TOKEN, range(2, 3), 0x28) is None
        assert rank_of(said[:place], TOKEN, range(9), 0x28) is None
