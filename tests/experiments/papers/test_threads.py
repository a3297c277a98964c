from __future__ import annotations

import pytest

from gradwire.errors import LinkError
from gradwire.experiments.papers.threads import exchange_s, on_threads
from gradwire.links import Link


def test_every_rank_has_its_link() -> None:
    assert on_threads(3, lambda link: (link.rank, link.world), None) == [(0, 3), (1, 3), (2, 3)]


def test_the_first_error_ends_all_ranks() -> None:
    import torch

    def fails(link: Link) -> None:
        if link.rank == 1:
            raise LinkError("rank 1 is gone")
        link.irecv(1, torch.zeros(4, dtype=torch.uint8)).wait()

    with pytest.raises(LinkError, match=r"rank 1 (is gone|has closed its link)"):
        on_threads(2, fails, None)


def test_an_exchange_takes_at_least_what_its_link_needs() -> None:
    # Two ranks send half of 200 kB twice: 200 kB at 2 MB/s.
    seconds = exchange_s(2, "ring", "identity", 200_000, 2e6, 0.0, 2)
    assert len(seconds) == 2
    assert all(0.099 <= each < 5 for each in seconds)
