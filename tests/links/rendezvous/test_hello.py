from __future__ import annotations

from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES
from gradwire.links.rendezvous.hello import NBYTES, hello, rank_of

TOKEN = bytes(range(TOKEN_NBYTES))


def test_who_knows_the_token_is_known_by_its_rank() -> None:
    said = hello(TOKEN, 258)
    assert said == TOKEN + b"\x02\x01\x00\x00"
    assert rank_of(said, TOKEN, range(3, 300)) == 258


def test_everybody_else_is_nobody() -> None:
    said = hello(TOKEN, 2)
    assert rank_of(said, TOKEN, range(3, 9)) is None
    for place in range(NBYTES):
        altered = bytearray(said)
        altered[place] ^= 0x80
        assert rank_of(bytes(altered), TOKEN, range(9)) is None
        assert rank_of(said[:place], TOKEN, range(9)) is None
