from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from gradwire.ddp.checks import AveragedParameters, CopiedCheck, ForwardCheck
from gradwire.errors import AttachError, ExchangeError


class FakeRounds:
    steps_done, over, failed, calls = 0, False, False, 0

    @property
    def between(self) -> FakeRounds:
        return self

    def check(self) -> None:
        if self.failed:
            raise ExchangeError("it failed before")

    def roll_call(self) -> None:
        self.calls += 1


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    yield DistributedDataParallel(nn.Sequential(frozen, nn.Linear(4, 2)))
    dist.destroy_process_group()


@pytest.fixture
def rounds() -> FakeRounds:
    return FakeRounds()


def test_a_failed_exchange_is_told_before_a_backward_pass_is_prepared(
    model: DistributedDataParallel, rounds: Any
) -> None:
    check = ForwardCheck(rounds, AveragedParameters(model))
    rounds.failed = True
    with torch.no_grad():
        check(model, None)
    with model.no_sync():
        check(model, None)
    with pytest.raises(ExchangeError, match="it failed before"):
        check(model, None)


def test_what_ddp_does_not_average_must_stay_frozen(model: DistributedDataParallel, rounds: Any) -> None:
    check = ForwardCheck(rounds, AveragedParameters(model))
    check(model, None)
    model.module[0].requires_grad_(True)
    with pytest.raises(AttachError, match=r"0\.weight was unfrozen after DistributedDataParallel was made"):
        check(model, None)


def test_ranks_answer_a_roll_call_before_ddp_cuts_its_buckets_anew(
    model: DistributedDataParallel, rounds: Any
) -> None:
    check = ForwardCheck(rounds, AveragedParameters(model))
    check(model, None)
    assert rounds.calls == 0, "no step is done"
    rounds.steps_done = 1
    check(model, None)
    assert rounds.calls == 1
    rounds.over = True
    check(model, None)
    assert rounds.calls == 1


def test_a_copy_leaves_it_behind(model: DistributedDataParallel, rounds: Any) -> None:
    assert isinstance(copy.deepcopy(ForwardCheck(rounds, AveragedParameters(model))), CopiedCheck)
