"""Calls of servers and workers within ``torch.inference_mode`` leave training as without it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from sync.conformance import test_inference_mode as core


def server(model: nn.Module, optimizer: Any, link: Any) -> Any:
    star = Plan(parse("fp8"), "star")
    return Worker(model, star, group=link) if link.rank else Server(model, optimizer, star, group=link)


def stale(model: nn.Module, optimizer: Any, link: Any) -> Any:
    if link.rank:
        return StaleWorker(model, "fp8", 0, "fp8", group=link)
    return StaleServer(model, optimizer, "fp8", 0, "fp8", group=link)


test_a_method_trains_on_as_if_nothing_had_been_called_within_it = pytest.mark.parametrize(
    "case", [(server, 2), (stale, 2)]
)(core.test_a_method_trains_on_as_if_nothing_had_been_called_within_it)
