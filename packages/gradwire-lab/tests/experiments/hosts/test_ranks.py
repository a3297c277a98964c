"""A rank of an experiment: what it sends, and which of its repetitions count."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.errors import LinkError
from gradwire.launch.rendezvous import joined_group
from gradwire.links import loopback
from gradwire.plan import Plan
from gradwire_lab.experiments.hosts import MARK
from gradwire_lab.experiments.hosts import ranks as module
from gradwire_lab.experiments.hosts.ranks import SETTLE_S, Ranks, gradient, undisturbed


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    (link,) = loopback(1)
    with joined_group(HashStore(), 0, 1, 20.0):
        yield Ranks(0, 1, link)


def test_a_peer_that_is_gone_at_the_end_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def barrier() -> None:
        raise RuntimeError("Connection closed by peer [10.0.0.2]\nException raised from ...")

    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setenv("GRADWIRE_THREADS", "1")
    monkeypatch.setattr(module, "join_launched", lambda _: HashStore())
    monkeypatch.setattr(module, "launched_rank", lambda: (0, 1))
    monkeypatch.setattr(torch.distributed, "barrier", barrier)
    with pytest.raises(LinkError) as error, module.met_ranks():
        pass
    reason = "Connection closed by peer [10.0.0.2]"
    sentence = f"rank 0 waited for the other ranks: a peer has ended or is too slow ({reason})"
    assert str(error.value) == f"{sentence}; see the other ranks' errors"


def test_rank_0_alone_sends_rows(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (link,) = loopback(1)
    for rank in (0, 1):
        Ranks(rank, 2, link).report({"codec": "fp8"}, {"rank": rank, "curve": [1]})
    printed = capfdbinary.readouterr().out
    assert printed.startswith(MARK)
    assert printed.endswith(b"\n")
    assert json.loads(printed.removeprefix(MARK)) == {"codec": "fp8", "rank": 0, "curve": [1]}


def test_repetitions_during_which_the_cores_were_taken_do_not_count(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen = iter([second for number in range(100) for second in (0.0, 1.0 if number % 2 else 0.0)])
    monkeypatch.setattr(module, "stolen_s", lambda: next(stolen))
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    found = ranks.time_s(Plan(parse("identity")), 1000, budget_s=20.0, least=2, most=4)
    assert len(found) == 4
    assert next(stolen) == 0.0
    assert [next(stolen) for _ in range(3)] == [1.0, 0.0, 0.0]  # 7 repetitions: 4 calm, 3 disturbed


def test_the_least_disturbed_count_where_none_is_calm(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(10**6))
    monkeypatch.setattr(module, "stolen_s", lambda: float(next(counts)) * 1e3)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    found = ranks.time_s(Plan(parse("identity")), 1000, budget_s=0.0, least=3, most=9)
    assert len(found) == 3
    assert all(seconds > 0 for seconds in found)


def test_the_least_disturbed_fill_up_too_few() -> None:
    timed = [(0.5, 3.0), (0.0, 1.0), (0.1, 2.0)]
    assert undisturbed(timed, 1) == undisturbed(timed, 3, enough=1) == [1.0]
    assert undisturbed(timed, 2) == [1.0, 2.0]
    assert undisturbed(timed[::2], 3, enough=1) == [2.0, 3.0]


def test_processor_seconds_are_those_of_all_repetitions(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = list[int]()
    stolen = iter([0.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(module, "stolen_s", lambda: next(stolen))
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    found = ranks.timed(lambda bucket: lengths.append(len(bucket)), 100, 20.0, 1, 1, first_count=7)
    assert lengths == [7, 100, 100]
    assert len(found.seconds) == 1, "a hypervisor took the cores during the other one"
    assert len(found.processor_s) == 2


def test_all_ranks_share_their_link_and_make_another(ranks: Ranks) -> None:
    with ranks.first(1) as link:
        assert link is ranks.link
    with ranks.linked() as link:
        assert (link.rank, link.world) == (0, 1)
        assert link is not ranks.link


def test_gradients_repeat_and_differ_between_seeds() -> None:
    assert torch.equal(gradient(1000, 1), gradient(1000, 1))
    assert not torch.equal(gradient(1000, 1), gradient(1000, 2))
    assert float(gradient(100_000, 1).abs().mean()) == pytest.approx(1e-3, rel=0.02)  # Laplace's scale


def test_an_agreement_that_takes_longer_than_the_pause_is_not_counted(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement_s = 5 * SETTLE_S

    def slow(_values: torch.Tensor, _operation: object) -> None:
        time.sleep(agreement_s)

    monkeypatch.setattr(torch.distributed, "all_reduce", slow)
    seconds = ranks.repeat_s(lambda: None, budget_s=0.01, least=3, most=3)
    assert min(seconds) < agreement_s - SETTLE_S, "the start that was agreed on was not over"
