from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.experiments.hosts import ranks as hosts
from gradwire.experiments.hosts.ranks import Ranks
from gradwire.experiments.smart_nic import steps
from gradwire.experiments.smart_nic.options import METHODS, Options, cells
from gradwire.experiments.smart_nic.steps import Replayed, Worker, measure, predicted
from gradwire.launch.group import joined_group
from gradwire.links import loopback
from gradwire.plan import Plan
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s
from gradwire.timing.closed_form.smart_nic import Mlp, Node
from gradwire.timing.replay.environment import FREE, Environment
from gradwire.timing.replay.line import Line

MLP = Mlp((8, 8, 8), 1)
FAST = Node(1e15, 0.0)


class Diary:
    """A worker that notes what the training thread has it do."""

    def __init__(self, worker: Worker) -> None:
        self.layers, self.buckets = worker.layers, worker.buckets
        self.notes: list[str] = []
        self._worker, self._thread = worker, threading.current_thread()

    def forward(self) -> None:
        self._worker.forward()

    def backward(self, layer: int, slowdown: float = 1.0) -> None:
        self.notes.append(f"backward {layer}")
        self._worker.backward(layer, slowdown)

    def update(self, layer: int) -> None:
        if threading.current_thread() is self._thread:
            self.notes.append(f"update {layer}")
        self._worker.update(layer)


@pytest.mark.parametrize(
    ("method", "notes"),
    [
        ("blocking", ["backward 2", "update 2", "backward 1", "update 1", "backward 0", "update 0"]),
        ("overlapped", ["backward 2", "backward 1", "backward 0"]),
        ("layer-wise", ["backward 2", "backward 1", "update 2", "backward 0", "update 1", "update 0"]),
    ],
)
def test_each_method_applies_the_averages_in_its_order(method: str, notes: list[str]) -> None:
    diaries: list[Diary] = []

    def rank(link: object) -> None:
        worker = Worker(MLP, FAST, torch.full((64,), 1.0 + link.rank))  # type: ignore[attr-defined]
        diary = Diary(worker)
        steps.METHODS[method](diary, Exchange(link, Plan(parse("identity"), "ring")))  # type: ignore[arg-type]
        for weights in worker.weights:
            assert torch.equal(weights, torch.full((64,), -1.5e-3))
        diaries.append(diary)

    threads = [threading.Thread(target=rank, args=(link,)) for link in loopback(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert [diary.notes for diary in diaries] == [notes, notes]


def environment() -> Environment:
    return Environment(Line(1e-4, 1e6), {"identity": FREE, "bfp:7x16": FREE}, header_nbytes=0)


def test_a_prediction_is_the_models_with_the_replays_exchanges() -> None:
    mlp, node, nic = Mlp((64,) * 3, 100), Node(1e8, 1e-7), Replayed(environment(), "identity")
    exchange_s = ring_s(4, 4 * 64**2, AlphaBetaGamma(1e-4, 1e-6))
    assert nic.all_reduce_s(64, 4) == pytest.approx(exchange_s)
    found = predicted("blocking", mlp, node, nic, 4)
    assert found.exposed_s == pytest.approx(3 * exchange_s)
    assert predicted("overlapped", mlp, node, nic, 4).backward_s == pytest.approx(1.11 * found.backward_s)
    assert predicted("layer-wise", mlp, node, nic, 4).total_s < found.total_s


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(hosts, "SETTLE_S", 0.0)
    monkeypatch.setattr(steps, "BUDGET_S", 0.0)
    monkeypatch.setattr(Ranks, "environment", lambda *_: environment())
    (link,) = loopback(1)
    with joined_group(HashStore(), 0, 1, 20.0):
        yield Ranks(0, 1, link)


def test_a_row_has_what_was_measured_and_what_was_predicted(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = []
    monkeypatch.setattr(ranks, "report", lambda cell, figures: rows.append({**cell, **figures}))
    wanted = cells(Options(parts=("step",), rate="1gbit", layers=2, width=64))
    measure(ranks, wanted)
    assert [row["method"] for row in rows] == [*METHODS, *METHODS]
    for row in rows:
        assert row["fastest_s"] <= row["measured_s"] <= row["slowest_s"]  # type: ignore[operator]
        assert row["predicted_s"] > 0  # type: ignore[operator]
