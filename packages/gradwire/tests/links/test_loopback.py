from __future__ import annotations

import pytest
import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links import loopback


def test_a_send_returns_only_once_it_is_received() -> None:
    links = loopback(2, timeout_s=0.05)
    with pytest.raises(LinkTimeoutError):
        links[0].isend(1, torch.ones(4, dtype=torch.uint8)).wait()


def test_the_frame_is_copied_into_the_receivers_buffer() -> None:
    links = loopback(2, timeout_s=5.0)
    buffer = torch.zeros(10, dtype=torch.uint8)
    receiving = links[1].irecv(0, buffer)
    links[0].isend(1, torch.ones(4, dtype=torch.uint8)).wait()
    received = receiving.wait()
    assert received.data_ptr() == buffer.data_ptr()
    assert received.tolist() == [1] * 4
    assert buffer[4:].tolist() == [0] * 6


def test_a_frame_larger_than_the_buffer_is_an_error_on_both_sides() -> None:
    links = loopback(2, timeout_s=5.0)
    receiving = links[1].irecv(0, torch.zeros(3, dtype=torch.uint8))
    sending = links[0].isend(1, torch.ones(4, dtype=torch.uint8))
    for waiting in (sending, receiving):
        with pytest.raises(LinkError, match="expected at most 3 bytes, got 4"):
            waiting.wait()


def test_a_world_of_one_has_nobody_to_talk_to() -> None:
    (link,) = loopback(1)
    assert (link.rank, link.world) == (0, 1)
    link.close()
