"""A whole run of one rank, beside the same training by hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from gradwire.launch.local import RankContext
from gradwire_lab.job.batches import build, learning_rate, shuffle
from gradwire_lab.job.data import Dataset
from gradwire_lab.job.options import JobOptions, make_run
from gradwire_lab.job.record import EpochDone, RunDone, RunResult, RunStarted
from gradwire_lab.job.train_loop import Job, Team, perform

IMAGES, BATCH, EPOCHS = 48, 16, 2


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(before)


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (IMAGES, 4, 4), generator=generator).to(torch.uint8)
    labels = torch.randint(0, 10, (IMAGES,), generator=generator)
    return Dataset("noise", images, labels, images[:9], labels[:9], mean=128.0, std=64.0)


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    return JobOptions((), tmp_path, workers=1, batch=BATCH, epochs=EPOCHS, lr=0.05, model="mlp")


def performed(options: JobOptions, data: Dataset, method: str, codec: str = "identity") -> list[Any]:
    """Return the events of a run."""
    run, told = make_run(method, codec), list[Any]()
    options = replace(options, runs=(run,))
    context: RankContext[Any] = RankContext(0, 1, told.append, HashStore)
    perform(run, Job(options, data, Team(HashStore(), 0, options), context))
    return told


def by_hand(options: JobOptions, data: Dataset) -> tuple[str, list[float], float]:
    """Train with torch alone; return the weights' hash, the steps' losses, and the last one held out."""
    model = build(options.model, data.image_shape, data.classes, options.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    losses, steps = [], options.steps(data)
    for step in range(steps):
        epoch, number = divmod(step, options.steps_per_epoch(data))
        if number == 0:
            order = shuffle(IMAGES, options.seed, epoch + 1)
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps, options.lr)
        images, labels = data.train_batch(order[number * BATCH : (number + 1) * BATCH])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    held_out = nn.functional.cross_entropy(model(next(data.test_batches())[0]), data.test_labels).item()
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters()))
    return digest.hexdigest(), losses, held_out


@pytest.mark.parametrize("method", ["sync", "ddp", "attach"])
def test_a_synchronous_run_is_the_training_by_hand(method: str, options: JobOptions, data: Dataset) -> None:
    started, *epochs, done = performed(options, data, method)
    digest, losses, held_out = by_hand(options, data)
    per_epoch = IMAGES // BATCH
    assert started == RunStarted(make_run(method), EPOCHS * per_epoch, EPOCHS)
    assert isinstance(done, RunDone)
    result = done.result
    assert result.weights_sha256 == digest
    epochs = [each for each in epochs if isinstance(each, EpochDone)]
    assert [each.epoch for each in epochs] == list(result.epochs)
    assert [(each.epoch.epoch, each.epoch.step) for each in epochs] == [(1, per_epoch), (2, 2 * per_epoch)]
    for number, each in enumerate(result.epochs):
        mean = sum(losses[number * per_epoch : (number + 1) * per_epoch]) / per_epoch
        assert each.loss == pytest.approx(mean)
    assert result.epochs[-1].held_out_loss == pytest.approx(held_out)
    check_seconds(result)


def check_seconds(result: RunResult) -> None:
    assert 0 < result.compute_s < result.step_s
    assert result.epochs[0].train_s < result.epochs[1].train_s == result.train_s


def test_a_pipeline_is_drained_at_every_evaluation(options: JobOptions, data: Dataset) -> None:
    """One rank's own gradients are the averages: an eager pipeline is synchronous, the paper's is late."""
    *_, done = performed(replace(options, evaluate_every=2), data, "pipe")
    result = done.result
    assert [each.step for each in result.epochs] == [2, 4, 6]
    assert [each.epoch for each in result.epochs] == [1, 2, 2]
    assert result.weights_sha256 == by_hand(options, data)[0]
    *_, late = performed(replace(options, correction="none"), data, "pipe")
    assert late.result.weights_sha256 != result.weights_sha256


def test_a_rate_that_is_too_high_diverges_and_is_told(options: JobOptions, data: Dataset) -> None:
    *_, done = performed(replace(options, lr=1e20), data, "sync")
    assert done.result.diverged
    assert not math.isfinite(done.result.epochs[-1].held_out_loss)


def test_who_has_no_part_waits_for_the_end(options: JobOptions, data: Dataset) -> None:
    waited: list[str] = []
    team: Any = SimpleNamespace(takes_part=lambda _: False, wait_for=waited.append)
    context: RankContext[Any] = RankContext(3, 4, pytest.fail, HashStore)
    perform(make_run("sync", "fp8"), Job(options, data, team, context))
    assert waited == ["sync:fp8"]
