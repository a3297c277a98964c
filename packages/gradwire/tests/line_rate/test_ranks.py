"""Ranks of a benchmark: what cannot be started, and one rank that has met all others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.errors import GradwireError, LinkError
from gradwire.launch.local import RankContext
from gradwire.line_rate.ranks import check_network, is_speaker, met_ranks
from gradwire.links import ProcessGroupLink, ThrottledLink
from support.launched import launch


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((1, None, 5.0), "--workers: expected 2 to 64, got 1"),
        ((65, None, 5.0), "--workers: expected 2 to 64, got 65"),
        ((2, None, 0.5), "--timeout: expected 1 to 86400 seconds, got 0.5"),
        ((2, None, float("nan")), "--timeout: expected 1 to 86400 seconds, got nan"),
        ((2, "100bit", 5.0), "--rate: expected 1kbit to 1000gbit, or unlimited, got 100bit"),
        ((2, "2000gbit", 5.0), "--rate: expected 1kbit to 1000gbit, or unlimited, got 2000gbit"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(GradwireError) as caught:
        check_network(*arguments)
    assert str(caught.value).startswith(reason)


def test_the_limits_themselves_are_taken() -> None:
    for workers, link, timeout_s in ((2, "1kbit", 1.0), (64, "1000gbit", 86_400.0), (2, None, 5.0)):
        check_network(workers, link, timeout_s)


def test_a_lone_launched_rank_is_told_to_start_more(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 0, 1)
    with pytest.raises(GradwireError) as caught:
        check_network(1, None, 5.0)
    assert str(caught.value) == "expected at least 2 ranks for a benchmark, got 1; start more ranks"


def test_rank_0_speaks_or_the_parent_of_local_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_speaker()
    for rank in (0, 1):
        launch(monkeypatch, rank, 2)
        assert is_speaker() == (rank == 0)


def test_one_rank_alone_meets_sums_and_hears_itself() -> None:
    context: RankContext[Any] = RankContext(0, 1, lambda _: None, HashStore)
    before = torch.get_num_threads()
    try:
        with met_ranks(context, 5.0) as ranks:
            ranks.say("word", "text")
            assert ranks.hear("word") == "text"
            assert ranks.gather(torch.tensor([1.0, 2.0])).tolist() == [[1.0, 2.0]]
            tensor = torch.tensor([3.0])
            ranks.all_reduce(tensor)
            assert tensor.tolist() == [3.0]
            kinds = [ranks.connect(rate) for rate in (None, "1gbit")]
            assert [type(link) for link in kinds] == [ProcessGroupLink, ThrottledLink]
            for link in kinds:
                link.close()
    finally:
        torch.set_num_threads(before)


def test_a_rank_that_waits_for_its_turn_hears_of_another_ranks_failure() -> None:
    """The two ranks are alone, one after the other, with one store."""
    store, before = HashStore(), torch.get_num_threads()
    context: RankContext[Any] = RankContext(0, 1, lambda _: None, lambda: store, doing="its work")
    try:
        with pytest.raises(ZeroDivisionError), met_ranks(context, 5.0):
            raise ZeroDivisionError
        reason = r"^rank 0 has failed \(its work\); see its error$"
        with pytest.raises(LinkError, match=reason), met_ranks(context, 5.0) as ranks:
            ranks.hear("never said")
    finally:
        torch.set_num_threads(before)
