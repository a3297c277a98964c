from __future__ import annotations

import pytest
import torch

from gradwire_lab.experiments.papers.inceptionn.training import NETWORKS, build


def layers(name: str, seed: int = 1) -> list[torch.nn.Linear]:
    net = build(name, (28, 28), 10, seed)
    return [each for each in net.modules() if isinstance(each, torch.nn.Linear)]


@pytest.mark.parametrize(("name", "mib"), [("HDC, 3 layers, He", 2.5), ("HDC, 5 layers, Xavier", 4.4)])
def test_hdc_has_the_published_sizes(name: str, mib: float) -> None:
    own = layers(name)
    assert len(own) == NETWORKS[name].layers
    assert sum(each.weight.numel() for each in own) * 4 / 2**20 == pytest.approx(mib, abs=0.05)


def test_initialisations_are_those_named() -> None:
    """He: a variance of 2 over the inputs; Xavier: 2 over inputs and outputs; biases are zero."""
    for name, wanted in (("HDC, 5 layers, He", 2 / 500), ("HDC, 5 layers, Xavier", 2 / 1000)):
        second = layers(name)[1]
        assert float(second.weight.detach().var()) == pytest.approx(wanted, rel=0.02)
        assert not second.bias.any()


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = layers("HDC, 3 layers, He")[0].weight
    torch.manual_seed(6)
    assert torch.equal(first, layers("HDC, 3 layers, He")[0].weight)
    assert not torch.equal(first, layers("HDC, 3 layers, He", seed=2)[0].weight)
