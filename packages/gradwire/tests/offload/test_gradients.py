from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gradwire.devices.base import CPU
from gradwire.errors import TensorError
from gradwire.offload.gradients import GradientReturn
from gradwire.offload.layers import OffloadLedger, layers_of
from gradwire.offload.policies import Static
from gradwire.offload.replicas import DeviceEnd
from gradwire.offload.sender import Sender
from gradwire.offload.sums import LayerSteps


@contextmanager
def returning(model: nn.Module) -> Iterator[tuple[nn.Module, GradientReturn, OffloadLedger]]:
    replica = copy.deepcopy(model)
    ends, ledger = [DeviceEnd(CPU, layers_of(model, replica))], OffloadLedger()
    Sender(ends, Static(32), ledger).close()
    gradients = GradientReturn(ends, ledger)
    yield replica, gradients, ledger
    gradients.close()


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def grads(model: nn.Module) -> list[torch.Tensor | None]:
    return [each.grad for each in model.parameters()]


def test_gradients_are_the_masters_when_backward_returns_and_add_up() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    expected = copy.deepcopy(model)
    with returning(model) as (replica, _, ledger):
        for _ in range(2):
            backward(expected(x).square().sum())
            backward(replica(x).square().sum())
            torch.testing.assert_close(grads(model), grads(expected), rtol=0, atol=0)
            assert grads(replica) == [None, None]
        assert ledger.layers[""].gradient_nbytes == 2 * 4 * 8
    backward(replica(x).sum())
    assert None not in grads(replica), "closed"


def test_a_layer_computed_again_in_backward_gives_its_gradient_once() -> None:
    model, x = nn.Linear(3, 3), torch.randn(4, 3, requires_grad=True)
    expected = copy.deepcopy(model)
    backward(expected(expected(x)).square().sum())
    with returning(model) as (replica, _, _):
        hidden = checkpoint(replica, x, use_reentrant=True)
        backward(checkpoint(replica, hidden, use_reentrant=True).square().sum())
    for found, wanted in zip(grads(model), grads(expected), strict=True):
        torch.testing.assert_close(found, wanted)


def test_gradients_stay_while_they_are_held() -> None:
    model = nn.Linear(3, 2)
    with returning(model) as (replica, gradients, _):
        with gradients.hold():
            backward(replica(torch.ones(1, 3)).sum())
            assert grads(model) == [None, None]
        backward(replica(torch.ones(1, 3)).sum())
        assert model.weight.grad is not None
        assert torch.equal(model.weight.grad, torch.full((2, 3), 2.0))


def test_a_failed_backward_leaves_nothing_behind() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: object, *_: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            raise ValueError("stop")

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    with returning(model) as (replica, gradients, _):
        first, second = replica.get_submodule("0"), replica.get_submodule("1")
        gradients.begin()
        with pytest.raises(ValueError, match="stop"):
            backward(second(Fails.apply(first(torch.ones(1, 3)))).sum())  # type: ignore[no-untyped-call]
        assert grads(model) == [None] * 4
        gradients.begin()
        backward(replica(torch.ones(1, 3)).sum())
        torch.testing.assert_close(grads(model)[3], torch.ones(1))


def test_within_ddp_the_averages_come_after_its_own_end(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(3, 2)
        with returning(model) as (replica, gradients, _):
            replica.register_forward_pre_hook(lambda *_: gradients.begin())
            ddp = DistributedDataParallel(replica)

            def tripled(bucket: Any) -> torch.futures.Future[torch.Tensor]:
                future = torch.futures.Future[torch.Tensor]()
                future.set_result(bucket.buffer() * 3)
                return future

            ddp.register_comm_hook(None, lambda _, bucket: tripled(bucket))
            with ddp.no_sync():
                backward(ddp(torch.ones(1, 3)).sum())
            assert grads(model) == [None, None]
            loss = ddp(torch.ones(1, 3)).sum()
            with torch.no_grad():
                replica(torch.ones(1, 3))  # an evaluation in between, without DDP
            backward(loss)
            assert model.bias.grad is not None
            assert torch.equal(model.bias.grad, torch.full((2,), 6.0))
            assert grads(replica) == [None, None]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("where", ["of the user", "of the copies"])
@pytest.mark.parametrize("stepping", [False, True])
def test_after_a_backward_pass_that_failed_the_next_one_is_whole(
    where: str, stepping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    expected = copy.deepcopy(model)
    replica, ledger = copy.deepcopy(model), OffloadLedger()
    end = DeviceEnd(CPU, layers_of(model, replica))
    Sender([end], Static(32), ledger).close()
    steps = LayerSteps(torch.optim.SGD(model.parameters(), lr=0.1)) if stepping else None
    gradients = GradientReturn([end], ledger, steps)

    def fail(*_: object) -> None:
        raise ValueError("stop")

    loss = replica(torch.ones(1, 3)).sum()
    with monkeypatch.context() as patched:
        if where == "of the user":
            hook = replica.get_parameter("1.weight").register_hook(fail)  # type: ignore[no-untyped-call]
        else:
            patched.setattr(type(CPU), "pinned", fail)
        with pytest.raises(ValueError, match="stop") as kept:
            backward(loss)
        if where == "of the user":
            hook.remove()
    assert grads(model) == [None] * 4
    for each in replica.parameters():
        each.grad = None
    backward(replica(torch.ones(1, 3)).sum())
    backward(expected(torch.ones(1, 3)).sum())
    assert kept.traceback
    for own, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        assert wanted.grad is not None
        if stepping:
            torch.testing.assert_close(own, wanted - 0.1 * wanted.grad)
        else:
            torch.testing.assert_close(own.grad, wanted.grad, rtol=0, atol=0)
    gradients.close()
    if steps is not None:
        steps.close()


def test_sparse_gradients_are_refused() -> None:
    with (
        returning(nn.Embedding(3, 2, sparse=True)) as (replica, _, _),
        pytest.raises(TensorError, match=r"dense float32 gradients.*; use Embedding\(sparse=False\)"),
    ):
        backward(replica(torch.tensor([1])).sum())


def test_backward_waits_for_the_copies() -> None:
    stream = mock.MagicMock()
    with (
        mock.patch.object(type(CPU), "stream", return_value=stream),
        returning(nn.Linear(1, 1)) as (replica, _, ledger),
    ):
        backward(replica(torch.ones(1, 1)).sum())
        assert stream.load.return_value.wait.call_count == 2
        assert stream.follow.call_count == 2
        assert ledger.gradient_wait_s > 0


def test_two_places_gradients_of_one_backward_pass_are_added_in_their_order() -> None:
    model = nn.Linear(3, 2, bias=False)
    replicas = [copy.deepcopy(model) for _ in range(3)]
    ends, ledger = [DeviceEnd(CPU, layers_of(model, each)) for each in replicas], OffloadLedger()
    Sender(ends, Static(32), ledger).close()
    gradients = GradientReturn(ends, ledger)
    scales = (1e8, 1.0, -1e8)  # whose sum depends on the order
    backward(
        torch.stack(
            [each(torch.full((1, 3), x)).sum() for each, x in zip(replicas, scales, strict=True)]
        ).sum()
    )
    assert model.weight.grad is not None
    assert set(model.weight.grad.flatten().tolist()) == {0.0}, "1e8 + 1 is 1e8"
    gradients.close()


def test_a_block_of_a_thread_that_is_about_to_drive_holds_nothing_of_others() -> None:
    model, opened, done = nn.Linear(3, 2), threading.Event(), threading.Event()
    with returning(model) as (replica, gradients, _), ThreadPoolExecutor(1) as pool:

        def wait_in_block() -> None:
            with gradients.hold():
                opened.set()
                assert done.wait(30)

        waiting = pool.submit(wait_in_block)
        assert opened.wait(30)
        gradients.begin()
        backward(replica(torch.ones(1, 3)).sum())
        came = [each is not None for each in grads(model)]
        done.set()
        waiting.result()
    assert came == [True, True]
