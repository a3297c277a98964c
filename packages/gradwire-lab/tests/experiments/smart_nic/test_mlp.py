from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradwire_lab.experiments.smart_nic.steps import MOMENTUM, RATE, Perceptron, ProjectedImages, images
from gradwire_lab.job.batches import learning_rate


def drawn(width: int = 8) -> ProjectedImages:
    torch.manual_seed(0)
    return ProjectedImages(torch.randn(5, width), torch.arange(5), torch.randn(5, width), torch.arange(5))


def perceptron(own: ProjectedImages, batch: int = 3, steps: int = 4) -> Perceptron:
    return Perceptron(own, layers=3, width=8, batch=batch, seed=1, rank=0, steps=steps)


def test_a_step_is_the_one_of_autograd() -> None:
    own = drawn()
    ours = perceptron(own)
    weights = [each.clone().requires_grad_() for each in ours.weights]
    moments = [torch.zeros(8, 8) for _ in weights]
    draw = torch.Generator().manual_seed(1000)
    for step in range(2):
        batch = torch.randint(5, (3,), generator=draw)
        outputs = ((own.own[batch] @ weights[0]).relu() @ weights[1]).relu() @ weights[2]
        gradients = torch.autograd.grad(cross_entropy(outputs, own.classes[batch]), weights)
        ours.forward()
        for layer in reversed(ours.layers):
            ours.backward(layer)
            torch.testing.assert_close(ours.buckets[layer].view(8, 8), gradients[layer])
        with torch.no_grad():
            for layer in ours.layers:
                ours.update(layer)
                moments[layer].mul_(MOMENTUM).add_(gradients[layer])
                weights[layer].sub_(learning_rate(step, 4, RATE) * moments[layer])
                torch.testing.assert_close(ours.weights[layer], weights[layer].detach())


def test_hosts_have_images_of_their_own_and_together_all() -> None:
    shares = [images("digits", 64, rank, 3) for rank in range(3)]
    everything = images("digits", 64, 0, 1)
    assert sum(len(each.own) for each in shares) == len(everything.own)
    assert torch.equal(shares[1].own[0], everything.own[1])
    assert torch.equal(shares[0].test, shares[2].test)


def test_it_learns() -> None:
    own = images("digits", 64, 0, 1)
    trained = Perceptron(own, layers=3, width=64, batch=128, seed=0, rank=0, steps=60)
    before = trained.judge()
    for _ in range(60):
        trained.forward()
        for layer in reversed(trained.layers):
            trained.backward(layer)
        for layer in trained.layers:
            trained.update(layer)
    accuracy, loss = trained.judge()
    assert accuracy > 0.85
    assert loss < before[1] / 2
    assert before[0] == pytest.approx(0.1, abs=0.1)
