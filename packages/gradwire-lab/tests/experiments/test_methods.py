"""The methods: alone, each of them takes plain SGD's steps, exactly or within what it rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.launch.rendezvous import joined_group
from gradwire.plan import Plan
from gradwire_lab.experiments.methods import (
    ComparedMethod,
    ComparedOnDDP,
    Pipelined,
    attached,
    chosen_in_the_run,
    torch_methods,
)
from gradwire_lab.experiments.tasks import TrainingTask

STEPS = 3


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with joined_group(HashStore(), 0, 1, 20.0):
        yield


def task() -> TrainingTask:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        batches = [(torch.randn(5, 6), torch.randint(4, (5,))) for _ in range(STEPS)]
    return TrainingTask(
        "small",
        model,
        lambda net: torch.optim.SGD(net.parameters(), lr=0.5),
        iter(batches),
        batches[0],
        block=STEPS,
        blocks=1,
    )


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def by_hand() -> torch.Tensor:
    plain = task()
    optimizer = plain.optimizer(plain.model)
    for batch in plain.batches:
        optimizer.zero_grad()
        plain.loss(plain.model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(plain.model)


EXACT: dict[str, Callable[[TrainingTask], ComparedMethod]] = {
    "DDP": ComparedOnDDP,
    "alone": lambda task: ComparedOnDDP(task, exchanging=False),
    "attached": lambda task: attached(task, Plan(parse("identity"))),
    "attached, small buckets": lambda task: attached(task, Plan(parse("identity"), bucket_nbytes=128)),
    "one that chooses itself": chosen_in_the_run,
    "a pipeline that chooses itself": lambda task: Pipelined(task, None),
    "pipelined": lambda task: Pipelined(task, Plan(parse("identity"), pipeline=2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_without_a_codec_a_world_of_one_trains_as_plain_sgd(name: str) -> None:
    trained = task()
    method = EXACT[name](trained)
    method.train(STEPS)
    method.close()
    assert torch.allclose(weights(method.model), by_hand(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fp16 hook", "bf16 hook", "PowerSGD 1", "PowerSGD 4"])
def test_the_hooks_of_torch_train_nearly_so(name: str) -> None:
    trained = task()
    before = weights(trained.model)
    method = torch_methods()[name](trained)
    method.train(STEPS)
    method.close()
    moved, expected = weights(method.model) - before, by_hand() - before
    assert torch.nn.functional.cosine_similarity(moved, expected, dim=0) > 0.9
