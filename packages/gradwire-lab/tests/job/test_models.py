import pytest
import torch

from gradwire_lab.job.batches import MODELS, build


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mlp", 784 * 500 + 500 + 500 * 500 + 500 + 500 * 10 + 10),
        ("hdc", 784 * 500 + 500 + 3 * (500 * 500 + 500) + 500 * 10 + 10),
        ("wide", 784 * 1536 + 1536 + 2 * (1536 * 1536 + 1536) + 1536 * 10 + 10),
        ("cnn", 16 * 10 + 32 * 145 + 32 * 49 * 128 + 128 + 128 * 10 + 10),
    ],
)
def test_sizes_are_the_papers(name: str, parameters: int) -> None:
    model = build(name, (28, 28), 10, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(8, 8), (28, 28)])
def test_every_model_takes_every_image(name: str, shape: tuple[int, int]) -> None:
    assert build(name, shape, 10, seed=0)(torch.zeros(3, 1, *shape)).shape == (3, 10)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = build("mlp", (8, 8), 10, seed=1)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after), "the global generator is left alone"
    torch.manual_seed(6)
    second, other = build("mlp", (8, 8), 10, seed=1), build("mlp", (8, 8), 10, seed=2)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
