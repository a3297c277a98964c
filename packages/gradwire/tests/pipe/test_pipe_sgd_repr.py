"""What an interactive session shows of a method, an exchange and a ledger."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradwire
from gradwire.errors import ExchangeError


def test_a_pipeline_and_its_exchange_say_what_they_are() -> None:
    (link,) = gradwire.loopback(1)
    model = nn.Linear(3, 1)
    pipe = gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), "quantize:8", group=link)
    exchange = "<Exchange of quantize:8 over ring, rank 0 of 1>"
    assert repr(pipe) == f"<PipeSGD, pipeline of 2, 0 steps, by {exchange}>"
    pipe.step(lambda: model(torch.ones(2, 3)).sum())
    assert repr(pipe) == f"<PipeSGD, pipeline of 2, 1 steps, by {exchange}>"
    assert repr(pipe.exchange) == exchange
    pipe.close()
    assert repr(pipe).startswith("<PipeSGD, pipeline of 2, closed, by ")
    link.close()


def test_an_exchange_says_why_it_is_over() -> None:
    (link,) = gradwire.loopback(1)
    exchange = gradwire.Exchange(link, gradwire.Plan())
    exchange.close("the peer left")
    assert repr(exchange) == "<Exchange of identity over ring, rank 0 of 1, failed: the peer left>"
    with pytest.raises(ExchangeError, match="the peer left"):
        exchange.all_reduce(torch.zeros(3))


def test_a_ledger_says_what_it_has_counted() -> None:
    ledger = gradwire.Ledger(3)
    ledger.bypassed("its gradient is sparse", "bucket 1", 4)
    ledger.end_step()
    assert repr(ledger) == "<Ledger of rank 3: 1 steps, 0 exchanges, ratio 1.00>"
