"""Each kind of cell, on one rank, and each way to train, on ranks that are threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.launch.rendezvous import joined_group
from gradwire.links import Link, loopback
from gradwire_lab.experiments.hosts.ranks import Ranks
from gradwire_lab.experiments.papers.pipe_sgd import trainer
from gradwire_lab.experiments.papers.pipe_sgd.tasks import TASKS, RankWork
from gradwire_lab.experiments.papers.pipe_sgd.trainer import RankTrainer, measure
from gradwire_lab.experiments.papers.pipe_sgd.ways import IN_SEGMENTS, WAYS

OPTIONS: dict[str, Any] = {
    "steps": 6,
    "batch": 40,
    "momenta": [0.0],
    "lrs": [0.1],
    "windows": 3,
    "window": 2,
}
CELL = {"data": "digits", "seed": 1}


class Kept(Ranks):
    """One rank whose rows are kept."""

    def __init__(self, link: Link) -> None:
        super().__init__(0, 1, link)
        self.rows: list[dict[str, Any]] = []

    def report(self, cell: Any, figures: Any) -> None:
        self.rows.append({**cell, **figures})


@pytest.fixture
def alone() -> Iterator[Kept]:
    (link,) = loopback(1)
    with joined_group(HashStore(), 0, 1, 20.0):
        yield Kept(link)
    link.close()


def test_each_kind_has_its_figures(alone: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "EXCHANGES_S", 0.01)
    cells = [
        {"kind": "plain", **CELL},
        {"kind": "train", "run": "Pipe-SGD", **CELL},
        {"kind": "time", "run": "K = 3", **CELL},
        {"kind": "line", "codec": "quantize:8", **CELL},
        {"kind": "time", "run": "K = 2 in segments", **CELL},
    ]
    measure(alone, cells, "mnist-mlp", OPTIONS)
    plain, trained, timed, line, in_segments = alone.rows
    assert plain["nbytes"] == 4 * (64 * 500 + 500 + 500 * 500 + 500 + 500 * 10 + 10)
    assert len(plain["steps_s"]) == len(timed["steps_s"]) == 3
    assert 0 < trained["accuracy"] <= 1
    assert len(line["exchange_s"]) >= 5
    assert 0 < plain["rest_s"] < max(plain["steps_s"])
    assert "segments" not in timed
    assert in_segments["segments"] == 4, "two of them are the largest weights"


def test_windows_that_a_hypervisor_took_do_not_count(alone: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = iter([0.0, 100.0, 100.0, 100.0, 100.0])
    monkeypatch.setattr(trainer, "stolen_s", lambda: next(stolen))
    measure(alone, [{"kind": "plain", **CELL}], "mnist-mlp", {**OPTIONS, "windows": 4})
    assert len(alone.rows[0]["steps_s"]) == 3


def weights(run: str) -> list[torch.Tensor]:
    """Return each worker's weights after six steps."""
    way = WAYS[run]
    links = loopback(2 + way.has_server)

    tasks = [TASKS["mnist-mlp"](RankWork(OPTIONS, CELL, link.rank - way.has_server, 2)) for link in links]

    def train(link: Link) -> torch.Tensor:
        task = tasks[link.rank]
        host: Any = SimpleNamespace(way=way, ranks=SimpleNamespace(link=link))
        trainee = RankTrainer(host, task)
        for step in range(6):
            trainee.step(step)
        trainee.close()
        return torch.cat([each.detach().flatten() for each in task.model.parameters()])

    with ThreadPoolExecutor(len(links)) as pool:
        found = [*pool.map(train, links)]
    for link in links:
        link.close()
    return found[way.has_server :]


def test_ways_train_alike() -> None:
    found = {run: weights(run) for run in ("D-Sync", "PS-Sync", "D-Sync+Q", "Pipe-SGD", "K = 2", "K = 1")}
    found |= {IN_SEGMENTS: weights(IN_SEGMENTS)}
    for one, other in found.values():
        assert torch.equal(one, other), "replicas are the same"
    assert torch.equal(found["D-Sync"][0], found["K = 1"][0])
    assert torch.equal(found["Pipe-SGD"][0], found["K = 2"][0])
    assert torch.equal(found[IN_SEGMENTS][0], found["K = 2"][0])
    torch.testing.assert_close(found["PS-Sync"][0], found["D-Sync"][0])
    assert not torch.equal(found["D-Sync+Q"][0], found["D-Sync"][0])
    assert not torch.equal(found["Pipe-SGD"][0], found["D-Sync"][0])
