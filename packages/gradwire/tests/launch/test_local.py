"""Tasks in processes of this machine: what they say, and who is to blame."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest

from faults.outside import listening
from gradwire.errors import LOSSY_LOGGER, JobError, LinkError, SpecError
from gradwire.launch.addresses import own_choice
from gradwire.launch.local import RankContext, Task, run_local
from gradwire.launch.rendezvous import joined_group
from support.processes import children


def introduce(context: RankContext[str], greeting: str) -> None:
    store = context.join_store()
    store.set(f"rank {context.rank}", greeting)
    others = [store.get(f"rank {rank}").decode() for rank in range(context.world)]
    context.report(f"{context.rank} of {context.world}: {' '.join(others)}")


def fail_with_an_echo(context: RankContext[str], _: str) -> None:
    context.doing = "far along"
    if context.rank == 0:
        raise LinkError("rank 1 is gone")
    time.sleep(0.3)
    raise SpecError("the cause")


def fail_while_the_other_finishes(context: RankContext[str], _: str) -> None:
    context.doing = "writing the report"
    if context.rank == 0:
        raise SpecError("the cause")
    time.sleep(0.3)


def warn(context: RankContext[str], sentence: str) -> None:
    logging.getLogger(LOSSY_LOGGER).warning(f"rank {context.rank}: {sentence}")
    context.report("warned")


def leave_without_a_word(context: RankContext[str], word: str) -> None:
    context.report(word)
    if context.rank == 1:
        time.sleep(0.2)
        os._exit(3)
    time.sleep(60)


def tell_where_it_listens(context: RankContext[str], _: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "some interface of the user's"
    with joined_group(context.join_store(), context.rank, context.world, 30.0):
        context.report(
            f"{own_choice(os.environ)} {' '.join(address for address, _ in listening([os.getpid()]))}"
        )


pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    assert not children()


def make_task(work: Callable[[RankContext[str], str], None], world: int) -> Task[str, str]:
    return Task(
        work,
        "hello",
        world,
        timeout_s=30,
        title=lambda rank: f"sailor {rank}",
        when=lambda last: f"at {last}",
    )


def test_every_rank_has_its_seat_and_all_share_a_store() -> None:
    heard: list[str] = []
    run_local(make_task(introduce, 3), heard.append)
    assert sorted(heard) == [f"{rank} of 3: hello hello hello" for rank in range(3)]


def test_the_cause_is_told_from_its_echo() -> None:
    with pytest.raises(JobError, match=r"^sailor 1 failed \(far along\): the cause$"):
        run_local(make_task(fail_with_an_echo, 2), lambda _: None)


def test_a_rank_that_finishes_meanwhile_does_not_hide_the_cause() -> None:
    with pytest.raises(JobError, match=r"^sailor 0 failed \(writing the report\): the cause$"):
        run_local(make_task(fail_while_the_other_finishes, 2), lambda _: None)


def test_who_leaves_without_a_word_is_named_with_the_last_event() -> None:
    with pytest.raises(JobError, match=r"^sailor 1 ended at hello; the other processes were ended"):
        run_local(make_task(leave_without_a_word, 2), lambda _: None)


def test_lossy_warnings_of_ranks_are_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    run_local(make_task(warn, 2), heard.append)
    assert heard == ["warned"] * 2
    assert sorted(caplog.messages) == ["rank 0: hello", "rank 1: hello"]


def test_no_rank_listens_where_another_host_could_call() -> None:
    heard: list[str] = []
    run_local(make_task(tell_where_it_listens, 2), heard.append)
    assert len(heard) == 2
    for addresses in heard:
        assert len(addresses.split()) >= 2  # the link's, and Gloo's at least
        assert set(addresses.split()) == {"127.0.0.1"}
