"""What a copy of an attached model may do, and what it forgets of the original's hook."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from gradwire.ddp.checks import Copied, CopiedCheck, TakenHooks, forget_original, own_hooks
from gradwire.errors import AttachError, ExchangeError

REASON = (
    "expected a model with gradwire attached, got an unattached copy, whose gradients would be averaged "
    "uncompressed; attach the copy, or evaluate the copy under torch.no_grad()"
)


def hook(_state: object, bucket: object) -> torch.futures.Future[torch.Tensor]:
    raise NotImplementedError


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(4, 2))
    dist.destroy_process_group()


def test_a_copy_is_for_evaluation_only() -> None:
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    model.register_forward_pre_hook(CopiedCheck())
    with pytest.raises(ExchangeError) as caught:
        model(x)
    assert str(caught.value) == REASON
    with torch.no_grad():
        assert model(x).shape == (2, 1)
    model.require_backward_grad_sync = False  # type: ignore[assignment] # as within no_sync
    assert model(x).requires_grad


def test_a_second_hook_is_refused_in_words() -> None:
    taken = TakenHooks([(hook, None)])
    with pytest.raises(AttachError) as caught:
        taken.append((hook, None))
    assert str(caught.value) == (
        "DDP supports only one communication hook, and gradwire.attach has registered it; remove the "
        "call register_comm_hook(hook), or wrap the module in a new DistributedDataParallel without gradwire"
    )
    assert taken == [(hook, None)]


def test_a_copys_list_of_hooks_takes_one_again() -> None:
    copied = copy.deepcopy(TakenHooks([(hook, 3)]))
    assert type(copied) is list
    assert copied == [(hook, 3)]


def test_a_copy_forgets_the_originals_hook_and_nothing_else(model: DistributedDataParallel) -> None:
    kept = model.register_forward_pre_hook(lambda *_: None)
    model.register_forward_pre_hook(CopiedCheck())
    model._comm_hooks[:] = [(hook, Copied()), (hook, None)]
    assert own_hooks(model) == ["hook"]
    forget_original(model)
    assert model._comm_hooks == [(hook, None)]
    assert list(model._forward_pre_hooks) == [kept.id]
    assert model(torch.ones(2, 4)).requires_grad
