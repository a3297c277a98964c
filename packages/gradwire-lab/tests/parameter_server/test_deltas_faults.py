"""Frames with changes of weights between a server and its workers; the core tests those of ``Sharded``."""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from gradwire.links import Link
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR
from support.sharded_ranks import adamw, loss_of
from sync.replicas import test_deltas_faults as core
from sync.replicas.test_deltas_faults import STEPS, Take, Training


def served(link: Link, model: nn.Sequential) -> list[Take]:
    if link.rank == 0:
        return [Server(model, adamw(model), STAR, "delta:fp32", group=link).step] * STEPS
    worker = Worker(model, STAR, "delta:fp32", group=link)
    return [partial(worker.step, loss_of(model, t, link.rank)) for t in range(STEPS)]


def served_late(link: Link, model: nn.Sequential) -> list[Take]:
    if link.rank == 0:
        return [partial(StaleServer(model, adamw(model), STAR, 0, "delta:bf16", group=link).serve, STEPS)]
    worker = StaleWorker(model, STAR, 0, "delta:bf16", group=link)
    return [*(partial(worker.step, loss_of(model, t, link.rank)) for t in range(STEPS)), worker.drain]


TRAININGS = {
    "server": Training(served, (6, 9, 12), intact_from=1),
    "stale server": Training(served_late, (6, 9, 12), intact_from=1, whole_from=1),  # serves in one call
}

test_ranks_fail_with_the_weights_of_a_whole_step = pytest.mark.parametrize(
    "training", TRAININGS.values(), ids=TRAININGS
)(core.test_ranks_fail_with_the_weights_of_a_whole_step)
