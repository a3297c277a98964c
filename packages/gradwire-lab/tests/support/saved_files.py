"""All kinds of files that gradwire writes of a training: ``support.file_kinds``, and the servers'."""

from __future__ import annotations

from typing import Any

from torch import nn

from gradwire.codecs import parse
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support import file_kinds
from support.file_kinds import by_method

STAR = Plan(parse("topk:0.5"), "star")


def _server(model: nn.Module, optimizer: Any, link: Link) -> Any:
    return Worker(model, STAR, group=link) if link.rank else Server(model, optimizer, STAR, group=link)


def _stale(model: nn.Module, optimizer: Any, link: Link) -> Any:
    if link.rank:
        return StaleWorker(model, STAR, 0, group=link)
    return StaleServer(model, optimizer, STAR, 0, group=link)


OF_SERVERS = {
    "Server, Worker": by_method(_server),
    "StaleServer, StaleWorker": by_method(_stale, drains=True),
}
KINDS = {**file_kinds.KINDS, **OF_SERVERS}
