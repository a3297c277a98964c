"""MPI's collectives over marked connections: three processes under ``mpiexec`` call them in one job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gradwire.codecs import parse
from support.mpi_collectives import SPEC, WORLD, share
from support.mpi_jobs import needs_mpi, run_job

pytestmark = needs_mpi


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what every rank found."""
    folder = tmp_path_factory.mktemp("collectives")
    return run_job("support.mpi_collectives", WORLD, folder, GLOO_SOCKET_IFNAME="lo")


def test_sums_are_within_the_codecs_bound_and_the_same_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    exact = sum(share(rank).astype(np.float64) for rank in range(WORLD))
    most = WORLD * 2**-8 + 1e-6
    for found in ranks:
        assert found["sum"].tobytes() == ranks[0]["sum"].tobytes() == found["in place"].tobytes()
        assert np.abs(found["sum"] - exact).max() <= most
    assert np.abs(ranks[0]["reduced"] - exact).max() <= most
    assert not any(found["reduced"].any() for found in ranks[1:])


def test_a_broadcast_gives_every_rank_what_the_codec_makes_of_the_roots_values(
    ranks: list[dict[str, Any]],
) -> None:
    codec, sent = parse(SPEC), torch.from_numpy(share(7))
    wanted = torch.empty_like(sent)
    codec.decode(codec.encode(sent), wanted)
    assert all(found["told"].tobytes() == wanted.numpy().tobytes() for found in ranks)


def test_what_does_not_fit_is_told_in_a_sentence(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        operation, kind, length, root, strided, link = found["errors"]
        assert operation == "expected the operation MPI.SUM, got another operation; omit op, or pass MPI.SUM"
        assert kind.startswith("expected recvbuf as a writeable, contiguous float32 array, got ")
        assert length == "expected sendbuf and recvbuf of equal length, got 5 and 5000; resize one buffer"
        assert root == "expected root=0, got 1; pass root=0"
        assert strided.startswith("expected buf as a writeable, contiguous float32 array, got ")
        assert "got a MpiLink with unmarked" in link
