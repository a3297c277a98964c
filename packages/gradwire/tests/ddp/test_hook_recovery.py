"""After an error nothing of gradwire keeps the failed model alive, so its module can be wrapped again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import ExchangeError, GradwireError, LinkError, LossyError, StateError
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.sync.bucket.encoding_error import EncodingErrorMeter
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.replicas import compare


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    DistributedDataParallel(nn.Linear(3, 1))  # the first one imports, and torch leaves that in a circle
    gc.disable()  # what only the collector would free is kept alive
    yield
    gc.enable()
    dist.destroy_process_group()


def _step(model: nn.Module) -> None:
    model.zero_grad()
    torch.autograd.backward(model(torch.ones(2, 3)).square().sum())


def _fails_in_an_exchange(monkeypatch: pytest.MonkeyPatch, _attached: Any, _model: Any) -> None:
    def fail(exchange: Exchange, *_: Any, **__: Any) -> None:
        error = ExchangeError("rank 1 is gone")
        exchange.close(error)
        raise error from LinkError("closed")

    monkeypatch.setattr(Exchange, "run", fail)


def _fails_out_of_turn(_monkeypatch: pytest.MonkeyPatch, _attached: Any, model: Any) -> None:
    model._comm_hooks[0][1].reducer._next = 1


def _fails_in_the_verdict(_monkeypatch: pytest.MonkeyPatch, attached: Any, _model: Any) -> None:
    attached._sync.meter._verdict = LossyError("rank 1: too much is lost")
    attached.kept = attached._sync.meter._verdict  # somebody holds it


def _is_closed(_monkeypatch: pytest.MonkeyPatch, attached: Any, _model: Any) -> None:
    attached.close()


@pytest.mark.parametrize(
    "fails", [_fails_in_an_exchange, _fails_out_of_turn, _fails_in_the_verdict, _is_closed]
)
def test_an_error_keeps_no_model_alive(
    fails: Callable[[pytest.MonkeyPatch, Any, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model = DistributedDataParallel(module)
    attached = gradwire.attach(model, "fp16")
    _step(model)
    with monkeypatch.context() as patch:
        fails(patch, attached, model)
        for _ in range(2):
            with suppress(GradwireError):
                _step(model)
    dead = weakref.ref(model)
    del model  # ``attached`` is still there
    assert dead() is None
    again = DistributedDataParallel(module)
    with gradwire.attach(again, "fp16"):
        _step(again)
        _step(again)


def test_replicas_that_differ_keep_no_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    different = {"weights": "rank 1 differ from those of rank 0"}
    monkeypatch.setattr(compare, "_differences", lambda *_, **__: different)
    model = DistributedDataParallel(nn.Linear(3, 1))
    attached = gradwire.attach(model, "fp16")
    attached.check_at_next_step()
    with suppress(StateError):
        _step(model)
        pytest.fail("expected an error of replicas that differ")
    dead = weakref.ref(model)
    del model
    assert dead() is None


def test_a_meter_holds_no_error_that_it_raised() -> None:
    exchange = Exchange(loopback(1)[0], gradwire.Plan())
    meter = EncodingErrorMeter(SyncContext(exchange, SyncOptions(strict=True)), [])
    heard = LossyError("too much is lost")
    meter._verdict = heard
    with suppress(LossyError):
        meter.raise_verdict()
    assert heard.__traceback__ is None
