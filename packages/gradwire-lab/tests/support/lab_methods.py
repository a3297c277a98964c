"""The lab's methods in the form of ``support.methods``: servers at rank 0, workers at the other ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.methods import TrainingMethod
from support.servers import STAR


def _served(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, link: Link) -> Any:
    return Worker(model, plan, group=link) if link.rank else Server(model, optimizer, plan, group=link)


def _served_late(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, link: Link) -> Any:
    if link.rank:
        return StaleWorker(model, plan, 1, group=link)
    return StaleServer(model, optimizer, plan, 1, group=link)


METHODS = {"ps": TrainingMethod(_served, STAR), "ssp": TrainingMethod(_served_late, STAR)}
