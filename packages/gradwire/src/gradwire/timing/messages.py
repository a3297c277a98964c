"""Short messages without headers between two ranks.

If the peer closes its link, its last frame may arrive instead of a message.
"""

from __future__ import annotations

import torch

from gradwire.errors import FrameError, LinkError
from gradwire.links.base import Link, Receiving
from gradwire.wire import PARTING_NBYTES, OutOfStepError, check_step, frame_memory


def memory_for(nbytes: int) -> torch.Tensor:
    """Return memory for a message of ``nbytes`` bytes, or for the last frame of a peer that closes a link."""
    return frame_memory(max(nbytes, PARTING_NBYTES))


def read(link: Link, source: int, receiving: Receiving, nbytes: int, timeout_s: float | None = None) -> bytes:
    """Return the ``nbytes`` bytes of a message from ``source``, received into memory from ``memory_for``.

    Raises ``LinkError`` if the link fails, if ``source`` closes its link, or if the message has another
    length.
    """
    frame, what = receiving.wait(timeout_s), f"rank {link.rank} receiving from {link.name_of(source)}"
    try:
        check_step(frame, None)
    except OutOfStepError as error:
        steps = "" if error.has_left else f" ({error})"
        raise LinkError(
            f"{what}: {link.name_of(source)} has closed its link{steps}; see that rank's error"
        ) from error
    except FrameError:
        pass  # a message without a header
    message: bytes = frame.numpy().tobytes()
    # A transport that doesn't report sizes returns the whole memory.
    if len(message) not in (nbytes, max(nbytes, PARTING_NBYTES)):
        raise LinkError(
            f"{what}: expected a message of {nbytes} bytes, got one of {len(message)}; use the same version "
            "of gradwire on all ranks"
        )
    return message[:nbytes]
