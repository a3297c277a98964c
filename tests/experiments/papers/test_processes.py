from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch

from gradwire.errors import JobError, SpecError
from gradwire.experiments.papers.processes import on_processes
from gradwire.links import Link
from support.processes import children

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    assert not children()


def _place(link: Link) -> tuple[int, int, int]:
    return link.rank, link.world, os.getpid()


def _fails(link: Link) -> None:
    if link.rank == 1:
        raise SpecError("the cause")
    link.irecv(1, torch.zeros(4, dtype=torch.uint8)).wait()


def _passed_on(link: Link) -> tuple[int, float]:
    """Send 100 kB to the next rank; return whose came, and the seconds of the second time."""
    frame = torch.full((100_000,), link.rank, dtype=torch.uint8)
    for _ in range(2):
        began = time.perf_counter()
        sending = link.isend((link.rank + 1) % link.world, frame)
        came = link.irecv((link.rank - 1) % link.world, torch.empty_like(frame)).wait()
        sending.wait()
        seconds = time.perf_counter() - began
    return int(came[0]), seconds


def test_every_rank_is_a_process_with_its_link() -> None:
    found = on_processes(3, _place, None)
    assert [place[:2] for place in found] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for *_, pid in found} | {os.getpid()}) == 4


def test_the_first_error_ends_all_ranks() -> None:
    with pytest.raises(JobError, match=r"^rank 1 failed \(at work\): the cause"):
        on_processes(2, _fails, None)


def test_frames_take_the_time_of_their_bytes_and_the_latency() -> None:
    found = on_processes(3, _passed_on, 5e6, 5e-3)
    assert [rank for rank, _ in found] == [2, 0, 1]
    assert max(seconds for _, seconds in found) >= 0.95 * (0.02 + 0.005)
