from __future__ import annotations

import os

import pytest
import torch

from gradwire.errors import JobError, LinkError
from gradwire.experiments.papers.processes import on_processes
from gradwire.links import Link


def _place(link: Link) -> tuple[int, int, int]:
    return link.rank, link.world, os.getpid()


def _fails(link: Link) -> None:
    if link.rank == 1:
        raise LinkError("rank 1 is gone")
    link.irecv(1, torch.zeros(4, dtype=torch.uint8)).wait()


def _passed_on(link: Link) -> int:
    """Send 100 kB to the next rank."""
    frame = torch.full((100_000,), link.rank, dtype=torch.uint8)
    sending = link.isend((link.rank + 1) % link.world, frame)
    came = link.irecv((link.rank - 1) % link.world, torch.empty_like(frame)).wait()
    sending.wait()
    return int(came[0])


def test_every_rank_is_a_process_with_its_link() -> None:
    found = on_processes(3, _place, None)
    assert [place[:2] for place in found] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for *_, pid in found} | {os.getpid()}) == 4


def test_the_first_error_ends_all_ranks() -> None:
    with pytest.raises(JobError, match="rank 1 is gone"):
        on_processes(2, _fails, None)


def test_frames_pass_through_paced_ports() -> None:
    assert on_processes(3, _passed_on, 5e6, 1e-3) == [2, 0, 1]
