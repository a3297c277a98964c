from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import TensorError
from gradwire.sync.flat.gradients import FlatGradients, FlatWeights


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def _expected(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the flat gradient by another door: ``autograd.grad`` never touches ``.grad``."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grads = torch.autograd.grad(model(x).square().mean(), parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def test_backward_writes_straight_into_the_buffer() -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    address = gradients.buffer.data_ptr()
    gradients.zero()
    model(x).square().mean().backward()
    assert torch.equal(gradients.buffer, _expected(model, x))
    assert gradients.collect().data_ptr() == address
    assert gradients.buffer.shape == (4 * 3 + 3 + 3 * 2 + 2,)


def test_the_buffer_is_on_the_cpu_whatever_the_default_device_is() -> None:
    model = nn.Linear(2, 3)
    with torch.device("meta"):
        assert FlatGradients(model.parameters()).buffer.device.type == "cpu"


def test_steps_do_not_accumulate() -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    for _ in range(3):
        gradients.zero()
        model(x).square().mean().backward()
    assert torch.equal(gradients.collect(), _expected(model, x))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_of_the_optimizer_is_repaired(set_to_none: bool) -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients.buffer.fill_(7.0)
    optimizer.zero_grad(set_to_none=set_to_none)
    model(x).square().mean().backward()
    assert torch.equal(gradients.collect(), _expected(model, x))
    assert all(
        parameter.grad is not None
        and parameter.grad.untyped_storage().data_ptr() == gradients.buffer.untyped_storage().data_ptr()
        for parameter in model.parameters()
    )
    gradients.buffer.fill_(2.0)
    assert all(bool((p.grad == 2.0).all()) for p in model.parameters() if p.grad is not None)


def test_a_gradient_taken_away_is_zero_and_not_the_last_one() -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    model(x).square().mean().backward()
    model[0].weight.grad = None
    collected = gradients.collect()
    assert torch.count_nonzero(collected[:12]) == 0
    assert torch.equal(collected[12:], _expected(model, x)[12:])


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_with_a_graph_is_collected() -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    gradients.zero()
    model(x).square().mean().backward(create_graph=True)
    assert torch.equal(gradients.collect(), _expected(model, x))
    assert not gradients.buffer.requires_grad


def test_a_sparse_gradient_becomes_dense() -> None:
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 1))
    indices = torch.tensor([1, 1, 4])
    gradients = FlatGradients(model.parameters())
    gradients.detach()
    model(indices).square().mean().backward()
    collected = gradients.collect()
    rows = collected[:24].view(6, 4).count_nonzero(dim=1)
    assert rows.tolist() == [0, 4, 0, 0, 4, 0]
    gradients.zero()
    model(indices).square().mean().backward()
    assert torch.equal(gradients.collect(), collected)


def test_unreached_and_frozen_parameters() -> None:
    model, x = _model(), torch.randn(5, 4)
    model.register_parameter("unreached", nn.Parameter(torch.ones(9)))
    model[0].bias.requires_grad_(False)
    gradients = FlatGradients(model.parameters())
    gradients.zero()
    model(x).square().mean().backward()
    assert gradients.buffer.numel() == 12 + 6 + 2 + 9
    assert torch.equal(gradients.collect(), _expected(model, x))
    assert model[0].bias.grad is None


def test_tied_parameters_count_once() -> None:
    first, last, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(5, 4)
    last.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), last)
    both = [*model.parameters(), *last.parameters()]  # a caller's list may name it twice
    gradients = FlatGradients(both)
    gradients.zero()
    model(x).square().mean().backward()
    assert gradients.buffer.numel() == 16 + 4 + 4
    assert torch.equal(gradients.collect(), _expected(model, x))
    assert FlatWeights(both).buffer.numel() == 24


def test_detach_keeps_the_buffer_and_zero_takes_it_back() -> None:
    model, x = _model(), torch.randn(5, 4)
    gradients = FlatGradients(model.parameters())
    model(x).square().mean().backward()
    before = gradients.collect().clone()
    gradients.detach()
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(gradients.buffer, before)
    gradients.zero()
    assert all(p.grad is not None and torch.count_nonzero(p.grad) == 0 for p in model.parameters())


@pytest.mark.parametrize("flat", [FlatGradients, FlatWeights])
@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        (nn.Parameter(torch.zeros(3, dtype=torch.float16)), "torch.float16"),
        (nn.Parameter(torch.zeros(3, dtype=torch.float64)), "torch.float64"),
        (nn.Parameter(torch.zeros(3, device="meta")), "on meta"),
        (nn.Parameter(torch.zeros(3, 3).to_sparse()), "torch.sparse_coo"),
    ],
)
def test_other_parameters_are_refused(
    flat: type[FlatGradients] | type[FlatWeights], parameter: nn.Parameter, said: str
) -> None:
    with pytest.raises(TensorError, match=said) as caught:
        flat([nn.Parameter(torch.zeros(2)), parameter])
    assert "parameter 1" in str(caught.value)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = _model().requires_grad_(False)
    with pytest.raises(TensorError, match="at least one trainable parameter"):
        FlatGradients(model.parameters())
    assert FlatWeights(model.parameters()).buffer.numel() == 23
    with pytest.raises(TensorError, match="at least one trainable parameter, got none"):
        FlatWeights([])


def test_a_model_whose_parameters_are_all_empty_is_refused() -> None:
    empty = nn.Parameter(torch.empty(0, 3))
    with pytest.raises(TensorError, match="one trainable weight, got 1 trainable parameters, all of"):
        FlatGradients([empty])
    assert FlatGradients([empty, nn.Parameter(torch.ones(2))]).buffer.numel() == 2


def test_weights_gather_and_scatter() -> None:
    model, other = _model(), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    flat = FlatWeights(model.parameters()).gather()
    assert torch.equal(flat, torch.cat([p.detach().flatten() for p in model.parameters()]))
    weights = FlatWeights(other.parameters())
    weights.buffer.copy_(flat)
    weights.scatter()
    x = torch.randn(5, 4)
    assert torch.equal(other(x), model(x))
    assert torch.equal(weights.buffer, flat)
    weights.buffer.zero_()
    assert torch.equal(other(x), model(x)), "the buffer is a copy"
    weights.scatter()
    assert torch.count_nonzero(other(x)) == 0
