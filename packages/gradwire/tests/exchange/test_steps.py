from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gradwire.errors import ExchangeError, FrameError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Difference, Framer, difference, leave, overheard
from gradwire.links import Link, loopback
from gradwire.links.sockets import SocketLink
from gradwire.plan import Plan
from gradwire.wire import HEADER_NBYTES, LATE, OutOfStepError, flags_of
from support.meshes import sockets
from support.ranks import run_ranks


def reduced(link: Link, steps: list[int | None]) -> str:
    link.step = steps[link.rank]
    try:
        Exchange(link, Plan()).all_reduce(torch.ones(100))
    except ExchangeError as error:
        return str(error)
    return ""


def test_frames_without_a_step_pass_and_frames_of_another_do_not() -> None:
    assert run_ranks(3, reduced, [5, 5, 5]) == ["", "", ""]
    assert run_ranks(3, reduced, [5, None, 5]) == ["", "", ""]
    for error in run_ranks(3, reduced, [5, 5, 4]):
        assert "rank 2 is at step 4" in error
        assert "is at step 5" in error


@pytest.mark.parametrize("step", [LATE, 50_000, 3 * (LATE + 1)])
def test_steps_of_a_long_run_are_named(step: int) -> None:
    for error in run_ranks(2, reduced, [step, step + 1]):
        assert f"rank 0 is at step {step}" in error
        assert f"rank 1 is at step {step + 1}" in error


def test_a_difference_is_between_ranks_of_the_link_at_two_steps() -> None:
    link = loopback(2)[0]
    link.step = 5
    found = difference(link, OutOfStepError([(None, 4)], has_left=False), 1)
    assert found == Difference(((1, 4), (0, 5)))
    assert found.in_words(link).startswith("rank 1 is at step 4, but rank 0 is at step 5; load the same")
    for places, error in (
        ([(None, 5)], OutOfStepError),
        ([(7, 4), (0, 5)], OutOfStepError),
        ([(None, 4)], None),
    ):
        raised = FrameError("other") if error is None else error(places, has_left=False)
        assert difference(link, raised, 1) is None


def test_a_late_step_is_told_as_a_bound() -> None:
    link = loopback(2)[0]
    assert f"rank 1 is at step {LATE} or later, but" in Difference(((1, LATE), (0, 5))).in_words(link)


def test_who_left_is_heard_by_who_waits_for_another() -> None:
    links = loopback(3, timeout_s=0.2)
    for link in links:
        link.step = 5
    links[2].step = 4
    leave(links[2], None)
    assert overheard(links[0]) == Difference(((2, 4), (0, 5)), has_left=True)
    leave(links[1], Difference(((2, 4), (1, 5)), has_left=True))
    assert overheard(links[0]) in (
        Difference(((2, 4), (1, 5)), has_left=True),
        Difference(((2, 4), (0, 5)), has_left=True),
    )


@pytest.mark.parametrize("step", [None, 4])
def test_who_left_at_the_same_step_has_closed_its_link(step: int | None) -> None:
    links = loopback(2, timeout_s=0.2)
    for link in links:
        link.step = step
    leave(links[1], None)
    assert overheard(links[0]) is None
    with pytest.raises(ExchangeError, match="rank 0 receiving from rank 1: rank 1 has closed its link"):
        Exchange(links[0], Plan()).all_reduce(torch.ones(8))


@pytest.mark.parametrize("behind", [True, False])
def test_a_repeated_last_frame_is_no_difference_of_steps(behind: bool) -> None:
    """Rank 1's last frame of step 5 arrives again, or rank 1 begins another exchange of step 5."""
    links = loopback(2, timeout_s=10)
    exchanges = [Exchange(link, Plan()) for link in links]
    for link in links:
        link.step = 5
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda exchange: exchange.all_reduce(torch.ones(100)), exchanges))
        links[0].step = 6
        number = exchanges[1]._sent.peek(0)
        frame = (
            Framer(Plan().encoding, 100)
            .encode(torch.ones(100), number if behind else number - 1, flags_of(5))
            .frame
        )
        links[1].isend(0, frame)
    found = overheard(links[0])
    assert found == (Difference(((1, 5), (0, 6))) if behind else None)


@pytest.mark.parametrize(("step", "is_heard"), [(6, False), (7, True), (4, True)])
def test_a_peer_that_went_on_to_the_next_step_is_no_reason_for_a_failure(step: int, is_heard: bool) -> None:
    """Rank 0's link has failed while rank 1, which has all of this exchange, already sends the next one's."""
    first, second = loopback(2, timeout_s=10)
    first.step, second.step = 5, step
    exchange = Exchange(second, Plan())
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(exchange.all_reduce, torch.ones(100))
        with pytest.raises(TimeoutError):
            pending.result(timeout=0.2)  # its first frame is on its way
        found = overheard(first)
        first.close()
        with pytest.raises(ExchangeError):
            pending.result(timeout=10)
    assert (found == Difference(((1, step), (0, 5)))) is is_heard
    assert found is None or is_heard


def arrived(link: SocketLink) -> None:
    """Wait until a frame has arrived from rank 1."""
    deadline = time.monotonic() + 10
    while not link._channels[1].peek(HEADER_NBYTES):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_wait_for_no_frame_ignores_a_repeated_last_frame_and_reports_a_new_one() -> None:
    first, second = sockets(2, 10.0)
    assert isinstance(first, SocketLink)
    exchanges = [Exchange(link, Plan()) for link in (first, second)]
    first.step = second.step = 5
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda exchange: exchange.all_reduce(torch.ones(100)), exchanges))
    first.step = 6
    framer, number = Framer(Plan().encoding, 100), exchanges[1]._sent.peek(0)
    second.isend(0, framer.encode(torch.ones(100), number - 1, flags_of(5)).frame).wait()
    arrived(first)
    first.check_steps()
    first.irecv(1, torch.empty(1000, dtype=torch.uint8)).wait()
    second.isend(0, framer.encode(torch.ones(100), number, flags_of(5)).frame).wait()
    arrived(first)
    with pytest.raises(OutOfStepError, match="ranks are at steps 5"):
        first.check_steps()
