"""The link of an exchange until its first failure, whose reason stays."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange.frames import Transport
from gradwire.links import loopback


def test_the_first_reason_ends_all_later_exchanges() -> None:
    transport = Transport(loopback(1)[0])
    transport.check()
    first = MemoryError("no room")
    transport.give_up(first)
    transport.give_up("another reason")
    assert transport.failure == "no room"
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room") as caught:
            transport.check()
        assert caught.value is not first, "copies, so that no traceback grows"


def test_a_reason_in_words_and_one_without_any_are_exchange_errors() -> None:
    for reason, said in (("it was closed", "it was closed"), ("", "str")):
        transport = Transport(loopback(1)[0])
        transport.give_up(reason)
        with pytest.raises(ExchangeError, match=rf"can no longer be used \({said}\)"):
            transport.check()


def test_closing_closes_the_link_and_may_be_done_twice() -> None:
    ours, theirs = loopback(2, timeout_s=5.0)
    receiving = theirs.irecv(0, torch.empty(64, dtype=torch.uint8))
    transport = Transport(ours)
    for reason in ("first", "second"):
        transport.close(reason)
    assert transport.failure == "first"
    with pytest.raises(LinkError):
        receiving.wait()
    assert not transport.note_difference(LinkError("closed")), "nothing trains, so no step differs"
