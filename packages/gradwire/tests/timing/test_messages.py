"""Messages without a header: the peer's, a damaged one, and its last frame in place of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.errors import LinkError
from gradwire.links import Link
from gradwire.timing.pairs import memory_for, read
from gradwire.wire import frame_of, parting_frame

RunRanks = Callable[..., list[Any]]


@pytest.mark.parametrize("message", [b"", b"12345678", bytes(range(256))])
def test_a_message_is_that_of_the_peer(run_ranks: RunRanks, message: bytes) -> None:
    def run(link: Link) -> bytes | None:
        if link.rank == 0:
            link.isend(1, frame_of(message)).wait()
            return None
        return read(link, 0, link.irecv(0, memory_for(len(message))), len(message))

    assert run_ranks(2, run)[1] == message


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([(0, 5)], "rank 1 receiving from rank 0: rank 0 has closed its link; see that rank's error$"),
        (
            [(0, 5), (2, 4)],
            r"rank 0 has closed its link \(ranks are at steps 5 and 4\); see that rank's error$",
        ),
        (None, "rank 1 receiving from rank 0: expected a message of 8 bytes, got one of 5; use the same"),
    ],
)
def test_another_message_is_an_error(
    run_ranks: RunRanks, places: list[tuple[int, int]] | None, reason: str
) -> None:
    def run(link: Link) -> None:
        if link.rank == 0:
            has_left = places is not None and len(places) == 1
            frame = frame_of(bytes(5)) if places is None else parting_frame(places, has_left=has_left)
            link.isend(1, frame).wait()
            return
        with pytest.raises(LinkError, match=reason):
            read(link, 0, link.irecv(0, memory_for(8)), 8)

    run_ranks(2, run)
