from __future__ import annotations

import pytest
import torch

from gradwire.errors import FrameError
from gradwire_lab.parameter_server.conversation import Kind, Message


@pytest.mark.parametrize("numbers", [[0] * 6, [8, 1, 0, 0, 0, 0], [1, -1, 0, 0, 0, 0]])
def test_numbers_that_are_no_message_are_refused(numbers: list[int]) -> None:
    floats = torch.tensor(numbers, dtype=torch.int32).view(torch.float32)
    with pytest.raises(FrameError, match="expected a message of a parameter server, got"):
        Message.from_floats(floats)


def test_messages_keep_every_bit() -> None:
    """Among them are numbers whose bits are those of NaNs."""
    message = Message(Kind.HELD, 2**31 - 1, 0, 0x7F800001, 0x7FC00001, 5)
    assert Message.from_floats(message.to_floats()) == message
