from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.launch.rendezvous import joined_group
from gradwire.links import loopback
from gradwire.plan import Plan
from gradwire_lab.experiments.hosts import ranks as hosts
from gradwire_lab.experiments.hosts.ranks import Ranks
from gradwire_lab.experiments.smart_nic import steps
from gradwire_lab.experiments.smart_nic.options import METHODS, NICS, STEP, SmartNicOptions, cells
from gradwire_lab.experiments.smart_nic.steps import (
    Communication,
    Perceptron,
    ProjectedImages,
    TimedWorker,
    measure,
)


def perceptron(rank: int, steps: int = 3) -> Perceptron:
    draw = torch.Generator().manual_seed(rank)  # the global one is that of all threads
    values = torch.randn(2, 6, 8, generator=draw)
    own = ProjectedImages(values[0], torch.arange(6), values[1], torch.arange(6))
    return Perceptron(own, layers=3, width=8, batch=4, seed=1, rank=rank, steps=steps)


def trained(method: str, count: int = 3) -> tuple[list[list[torch.Tensor]], list[str]]:
    """Return both ranks' weights after some steps, and the notes of the last one."""
    found: dict[int, list[torch.Tensor]] = {}
    notes: list[str] = []

    def rank(link: object) -> None:
        own = perceptron(link.rank, count)  # type: ignore[attr-defined]
        communication = Communication(own, Exchange(link, Plan(parse("identity"), "ring")), core())  # type: ignore[arg-type]
        for _ in range(count):
            worker = TimedWorker(own)
            steps.METHODS[method](worker, communication)
        communication.close()
        found[link.rank] = own.weights  # type: ignore[attr-defined]
        notes[:] = worker.notes

    threads = [threading.Thread(target=rank, args=(link,)) for link in loopback(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    return [found[0], found[1]], notes


def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("method", "notes"),
    [
        ("naive", ["B3", "B2", "B1", "U3", "U2", "U1"]),
        ("overlapped", ["B3", "B2", "B1"]),
        ("layer-wise", ["B3", "B2", "U3", "B1", "U2", "U1"]),
    ],
)
def test_each_schedule_has_its_order(method: str, notes: list[str]) -> None:
    assert trained(method)[1] == notes


def test_all_schedules_train_the_same_weights_on_all_hosts() -> None:
    first, *others = (weights for method in METHODS for weights in trained(method)[0])
    for other in others:
        for one, another in zip(first, other, strict=True):
            assert torch.equal(one, another)


def test_the_weights_are_those_of_the_mean_gradient() -> None:
    ours = trained("naive", 1)[0][0]
    ranks = [perceptron(rank, 1) for rank in (0, 1)]
    for each in ranks:
        each.forward()
        for layer in reversed(each.layers):
            each.backward(layer)
    for layer in ranks[0].layers:
        ranks[0].buckets[layer].add_(ranks[1].buckets[layer]).div_(2)
        ranks[0].update(layer)
        torch.testing.assert_close(ours[layer], ranks[0].weights[layer])


def test_times_are_those_of_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    worker = TimedWorker(perceptron(0))
    worker.forward()
    worker.backward(2)
    worker.backward(1)
    worker.wait(Mock())
    worker.update(2)
    assert worker.seconds == {"forward": 1, "backward": 2, "update": 1, "exposed": 1}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(hosts, "SETTLE_S", 0.0)
    monkeypatch.setattr(steps, "REPEATS", 3)
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    (link,) = loopback(1)
    before = os.sched_getaffinity(0)
    try:
        with joined_group(HashStore(), 0, 1, 20.0):
            yield Ranks(0, 1, link)
    finally:
        os.sched_setaffinity(0, before)


def test_rows_have_parameters_of_the_calibration_and_times_beside_accuracies(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = []
    monkeypatch.setattr(ranks, "report", lambda cell, figures: rows.append({**cell, **figures}))
    sizes = SmartNicOptions(
        (STEP,), hosts=(2,), rates=("1gbit",), widths=(64,), batches=(8, 16), layers=2, steps=5
    )
    measure(ranks, cells(sizes))
    calibration, *trained = rows
    for name in ("compute_core_s", "update_core_s", "exchange_core_s", "exchange_s"):
        assert calibration[name] >= 0  # type: ignore[operator]
    assert [(row["method"], row["codec"]) for row in trained] == [*NICS]
    for row in trained:
        for name in ("accuracies", "losses", "step_s", "forward_s", "backward_s", "update_s", "exposed_s"):
            assert len(row[name]) == 3  # type: ignore[arg-type]
        assert row["fastest_s"] <= min(row["step_s"]) <= row["slowest_s"]  # type: ignore[call-overload]
        assert row["notes"] == ["B2", "B1", "U2", "U1"]
    assert trained[0]["accuracies"] == trained[1]["accuracies"], (
        "one rank exchanges nothing, so loses nothing"
    )
