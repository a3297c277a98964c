from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import collectives
from gradwire.errors import ExchangeError, FrameError, LinkError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES
from support.faulty_link import Fault, FaultyLink

RunRanks = Callable[..., list[Any]]
EACH_ALGORITHM = pytest.mark.parametrize("algorithm", sorted(collectives.TABLE))
WORLD, TIMEOUT_S = 4, 1.0
LONG_S = 10.0  # what is noticed at once is noticed in much less on any machine
SEGMENTS = 6  # of a chunk, so that the first frames all have one receiver
ELEMENTS = WORLD * SEGMENTS * (SEGMENT_UNIT_NBYTES // 4)
FIRST_CHUNK_OF_RANK_1 = {"ring": 1, "pairwise": 2, "star": 0, "tree": 0, "butterfly": 2, "hierarchical": 2}
RECEIVER_FROM_RANK_1 = {"ring": 2, "pairwise": 2, "star": 0, "tree": 0, "butterfly": 3, "hierarchical": 0}


def exchanged(
    run_ranks: RunRanks, fault: Fault, algorithm: str = "ring", timeout_s: float = TIMEOUT_S
) -> tuple[list[Any], list[torch.Tensor]]:
    """All-reduce under a fault; return every rank's outcome and what its tensor holds then."""
    tensors = [torch.full((ELEMENTS,), float(1 << rank)) for rank in range(WORLD)]

    def rank(link: Link) -> None:
        plan = Plan(algorithm=algorithm, segment_nbytes=SEGMENT_UNIT_NBYTES)
        Exchange(link, plan).all_reduce(tensors[link.rank], average=False)

    links = [FaultyLink(link, [fault]) for link in loopback(WORLD, timeout_s)]
    return run_ranks(WORLD, rank, links=links, errors="return"), tensors


@pytest.mark.parametrize(
    ("kind", "bit", "reason"),
    [
        ("corrupt", 0, "not a gradwire frame"),
        ("corrupt", 8 * 12, "the header's checksum"),
        ("corrupt", 8 * HEADER_NBYTES + 5, "the payload's checksum"),
        ("corrupt", -1, "the payload's checksum"),
        ("truncate", 0, "truncated"),
        ("drop", 0, "out of order: expected frame 2, got frame 3"),
        ("duplicate", 0, "out of order: expected frame 3, got frame 2"),
    ],
)
@EACH_ALGORITHM
def test_a_spoilt_frame_is_an_error_on_every_rank_that_names_rank_peer_and_step(
    run_ranks: RunRanks, kind: Any, bit: int, reason: str, algorithm: str
) -> None:
    receiver = RECEIVER_FROM_RANK_1[algorithm]
    segment = f"segment {3 if kind == 'duplicate' else 2} of chunk {FIRST_CHUNK_OF_RANK_1[algorithm]}"
    noticed_at = f"step 0 of the {algorithm} schedule, {segment}"
    started = time.monotonic()
    errors, _ = exchanged(run_ranks, Fault(kind, rank=1, step=2, bit=bit), algorithm, LONG_S)
    assert time.monotonic() - started < LONG_S
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert f"{noticed_at}: rank {receiver} receiving from rank 1: {reason}" in str(errors[receiver])
    assert isinstance(errors[receiver].__cause__, FrameError)


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_the_last_frame_of_a_step_that_comes_twice_is_no_rank_that_is_behind(
    run_ranks: RunRanks, world: int
) -> None:
    """Nobody waits for the second one in its own step; in the next step it comes before the first frame."""

    def train(link: Link) -> None:
        exchange = Exchange(link, Plan())
        for link.step in (4, 5):
            exchange.all_reduce(torch.ones(100))

    last = 2 * (world - 1) - 1
    links = [FaultyLink(link, [Fault("duplicate", rank=1, step=last)]) for link in loopback(world, LONG_S)]
    errors = run_ranks(world, train, links=links, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert (
        f"receiving from rank 1: out of order: expected frame {last + 1}, got frame {last} of another"
        in str(errors[2 % world])
    )
    assert not any("the same checkpoint" in str(error) for error in errors)


@pytest.mark.parametrize("kind", ["corrupt", "truncate", "drop", "duplicate", "fail"])
@EACH_ALGORITHM
def test_every_segment_was_added_as_a_whole_or_not_at_all(
    run_ranks: RunRanks, kind: Any, algorithm: str
) -> None:
    errors, tensors = exchanged(run_ranks, Fault(kind, rank=1, step=4, bit=-7), algorithm)
    assert all(isinstance(error, ExchangeError) for error in errors)
    for rank, tensor in enumerate(tensors):
        for segment in tensor.view(-1, SEGMENT_UNIT_NBYTES // 4):
            value = int(segment[0].item())
            assert (segment == value).all()
            assert value & 1 << rank
            assert value < 1 << WORLD


@pytest.mark.parametrize("step", [0, 5, 8])
@EACH_ALGORITHM
def test_a_link_that_breaks_in_the_reduce_half_is_an_error_on_every_rank_at_once(
    run_ranks: RunRanks, step: int, algorithm: str
) -> None:
    started = time.monotonic()
    errors, _ = exchanged(run_ranks, Fault("fail", rank=1, step=step), algorithm, LONG_S)
    assert time.monotonic() - started < LONG_S
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert all(isinstance(error.__cause__, LinkError) for error in errors)
    assert "the link broke, as its faults ask" in str(errors[1])


@EACH_ALGORITHM
def test_a_silent_peer_is_a_timeout_on_every_rank(run_ranks: RunRanks, algorithm: str) -> None:
    """The peer stays alive and says nothing, as a stopped process does."""

    def rank(link: Link) -> None:
        if link.rank == 1:
            time.sleep(2 * TIMEOUT_S)
            return
        Exchange(link, Plan(algorithm=algorithm)).all_reduce(torch.ones(100))

    started = time.monotonic()
    errors = run_ranks(WORLD, rank, links=loopback(WORLD, TIMEOUT_S), errors="return")
    assert time.monotonic() - started < 10 * TIMEOUT_S
    silent = [error for error in errors if error is not None]
    assert len(silent) == WORLD - 1
    assert all(isinstance(error, ExchangeError) for error in silent)
    assert any(
        isinstance(error.__cause__, LinkTimeoutError) and "rank 1: no progress within 1 s" in str(error)
        for error in silent
    )


@EACH_ALGORITHM
def test_a_delay_changes_nothing_but_the_time(run_ranks: RunRanks, algorithm: str) -> None:
    started = time.monotonic()
    outcomes, tensors = exchanged(run_ranks, Fault("delay", rank=1, step=2, seconds=0.3), algorithm)
    assert time.monotonic() - started >= 0.3
    assert outcomes == [None] * WORLD
    assert all((tensor == (1 << WORLD) - 1).all() for tensor in tensors)


def test_an_interrupt_closes_the_link_and_goes_on_as_itself(run_ranks: RunRanks) -> None:
    class Interrupting(FaultyLink):
        def isend(self, to: int, frame: torch.Tensor) -> Any:  # noqa: ARG002 - the contract's parameters
            raise KeyboardInterrupt

    ends = loopback(2, LONG_S)

    def rank(link: Link) -> None:
        Exchange(link, Plan()).all_reduce(torch.ones(100))

    started = time.monotonic()
    errors = run_ranks(2, rank, links=[Interrupting(ends[0], []), ends[1]], errors="return")
    assert time.monotonic() - started < LONG_S
    assert isinstance(errors[0], KeyboardInterrupt)
    assert isinstance(errors[1], ExchangeError)
    assert "rank 0 has closed its link" in str(errors[1])


@pytest.mark.parametrize("algorithm", ["star", "tree"])
def test_a_rank_that_is_served_last_waits_while_others_are_served(
    run_ranks: RunRanks, algorithm: str
) -> None:
    """Frames of one rank take longer, all together, than any rank may wait for one."""
    slow = [Fault("delay", rank=1, step=step, seconds=0.3) for step in range(5)]
    plan = Plan(algorithm=algorithm, segment_nbytes=SEGMENT_UNIT_NBYTES)

    def rank(link: Link) -> float:
        tensor = torch.ones(5 * SEGMENT_UNIT_NBYTES // 4)
        Exchange(FaultyLink(link, slow) if link.rank == 1 else link, plan).all_reduce(tensor, average=False)
        return float(tensor.max())

    assert run_ranks(4, rank, links=loopback(4, timeout_s=0.8)) == [4.0] * 4
