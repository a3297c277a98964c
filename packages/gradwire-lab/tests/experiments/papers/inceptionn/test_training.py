from __future__ import annotations

import pytest
import torch

from gradwire.codecs import parse
from gradwire_lab.experiments.experiment import LOSSY, HeardWarnings
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.learning import GOALS
from gradwire_lab.experiments.papers.inceptionn.training import (
    NETWORKS,
    WORKERS,
    _ring,
    passed,
    train,
    updating,
)


def test_training_learns_and_is_repeated_bit_for_bit() -> None:
    images = dataset("digits")
    first = train(images, "CNN", 64, 1, every=30)
    assert [*first] == [30, 60, 64]
    assert first[64] > 0.5
    assert train(images, "CNN", 64, 1, every=30) == first
    assert train(images, "CNN", 64, 2, every=30) != first


def test_gradients_pass_the_codec_in_every_hop() -> None:
    """The average of a ring is the schedule's: partial sums and the finished sum are encoded."""
    codec = parse("inceptionn:2^-6")
    own = [torch.randn(8, generator=torch.Generator().manual_seed(rank)) * 0.1 for rank in range(WORKERS)]
    sums = []
    for chunk in range(WORKERS):  # a chunk begins at the rank of its own number and goes around
        part = slice(2 * chunk, 2 * chunk + 2)
        partial = own[chunk][part]
        for hop in range(1, WORKERS):
            partial = passed(codec, partial) + own[(chunk + hop) % WORKERS][part]
        sums.append(passed(codec, partial))
    with _ring(codec, {"weight": 8}) as average:
        found = average([each.clone() for each in own])
    assert torch.equal(found, torch.cat(sums) / WORKERS)
    assert not torch.equal(found, torch.stack([passed(codec, each) for each in own]).mean(0))


def test_without_a_codec_the_average_is_exact() -> None:
    own = [torch.full((5,), float(rank)) for rank in range(WORKERS)]
    with _ring(None, {"weight": 5}) as average:
        assert torch.equal(average(own), torch.full((5,), 1.5))


@pytest.mark.filterwarnings("ignore::gradwire.errors.LossyWarning")
def test_a_codec_that_loses_most_of_a_gradient_is_warned_of_by_every_worker() -> None:
    with HeardWarnings() as heard:
        train(dataset("digits"), "CNN", 10, 1, of_gradients=parse("inceptionn:2^-4"))
    sentences = heard.joined({})[LOSSY]
    workers = {sentence.partition(":")[0] for sentence in sentences}
    assert workers == {f"rank {worker}" for worker in range(WORKERS)}
    assert all("inceptionn:2^-4 loses" in sentence for sentence in sentences)


def test_what_is_watched_is_the_first_workers_gradient() -> None:
    seen: list[tuple[int, torch.Tensor]] = []
    train(
        dataset("digits"),
        "CNN",
        2,
        1,
        of_gradients=parse("truncate:24"),
        watch=lambda step, gradient: seen.append((step, gradient.clone())),
    )
    assert [step for step, _ in seen] == [0, 1]
    assert not torch.equal(seen[0][1], passed(parse("truncate:24"), seen[0][1]))


def test_weights_that_are_cut_off_learn_less() -> None:
    images = dataset("digits")
    cut = train(images, "CNN", 56, 1, of_weights=parse("truncate:24"))
    assert cut[56] < train(images, "CNN", 56, 1)[56] - 0.1


def test_an_update_takes_a_flat_gradient_apart_at_a_rate_that_falls() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2, 1)), torch.nn.Parameter(torch.zeros(1))]
    update = updating("CNN", weights, 5)
    rate = NETWORKS["CNN"].rate
    update(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.allclose(torch.cat([each.flatten() for each in weights]), -rate * torch.tensor([1.0, 2, 3]))
    # Momentum: 0.9 of the first gradient, after the first of five steps at a fifth of the rate.
    before = weights[1].item()
    update(torch.zeros(3))
    assert weights[1].item() == pytest.approx(before - 0.2 * rate * (0.9 * 3 + 5e-5 * before))


def test_the_goal_of_the_digits_is_their_nearest_neighbours() -> None:
    images = dataset("digits")
    own, labels = images.train_batch(torch.arange(len(images.train_labels)))
    ((test, right),) = images.test_batches()
    nearest = torch.cdist(test.flatten(1), own.flatten(1)).argmin(1)
    accuracy = float((labels[nearest] == right).float().mean())
    assert GOALS["digits"].known == pytest.approx(accuracy, abs=0.0005)
