from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.planner.model import REPEATS, load_factory, measure_model
from gradwire.units import parse_count

FACTORIES = """
import torch
from torch import nn

number = 3

def net():
    return nn.Linear(3, 2)

def with_inputs():
    return nn.Linear(3, 2), (torch.ones(5, 3),)

def with_a_tensor():
    return nn.Linear(3, 2), torch.ones(5, 3)

def frozen():
    return nn.Linear(3, 2).requires_grad_(False)

def raises():
    raise ValueError("no weights here\\nat all")

def leaves():
    raise SystemExit(3)

def is_ended():
    raise SystemExit(143)

def wants(more):
    return nn.Linear(3, 2)

def text():
    return "net"

class Zoo:
    net = staticmethod(net)
"""


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "some_factories.py").write_text(FACTORIES)
    (tmp_path / "broken_factories.py").write_text("import nothing_like_this\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    assert sys.path == before
    for name in ("some_factories", "broken_factories"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("61e6", 61_000_000),
        ("61M", 61_000_000),
        ("25.6M", 25_600_000),
        ("2.5e3", 2500),
        ("12", 12),
        ("7B", 7_000_000_000),
        ("1.5G", 1_500_000_000),
        ("10k", 10_000),
        ("package:net", None),
        ("resnet", None),
        ("-5", None),
    ],
)
def test_counts_are_written_in_many_ways(text: str, count: int | None) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["0", "0M", "1.5", "25.67e1", "1e99"])
def test_what_is_no_count_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="whole number of parameters"):
        parse_count(text)


def test_a_factory_may_give_inputs_too() -> None:
    model, inputs = load_factory("some_factories:net")
    assert isinstance(model, nn.Linear)
    assert inputs is None
    for name in ("with_inputs", "with_a_tensor"):
        _, inputs = load_factory(f"some_factories:{name}")
        assert inputs is not None
        assert inputs[0].shape == (5, 3)
    assert isinstance(load_factory("some_factories:Zoo.net")[0], nn.Linear)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no_such_module:net", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken_factories:net", "cannot be imported: ModuleNotFoundError: No module named 'nothing_like"),
        ("some_factories:nett", "some_factories has no nett"),
        ("some_factories:number", "to be a function without arguments, got a int"),
        ("some_factories:raises", "raised ValueError: no weights here"),
        ("some_factories:wants", "raised TypeError"),
        ("some_factories:leaves", "expected .* to return a model, got an exit with code 3"),
        ("some_factories:text", "to return a torch.nn.Module, .* got a str"),
        ("some_factories:frozen", "a model with trainable parameters, got a model without any"),
    ],
)
def test_a_factory_that_is_none_is_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        load_factory(text)
    assert "\n" not in str(caught.value)


def test_a_signal_still_ends_a_factory() -> None:
    with pytest.raises(SystemExit) as caught:
        load_factory("some_factories:is_ended")
    assert caught.value.code == 143


def test_passes_are_timed_and_their_gradients_kept() -> None:
    model, threads = nn.Linear(3, 2), torch.get_num_threads()
    found = measure_model(model, (torch.ones(5, 3),), threads=1)
    assert 0 < found.forward_s < 1
    assert 0 < found.backward_s < 1
    assert len(found.gradients) == REPEATS
    assert found.gradients[0].tolist() == pytest.approx([0.5] * 8)  # the mean over 2 outputs of inputs 1
    assert model.weight.grad is None
    assert torch.get_num_threads() == threads


class Wrapped(nn.Module):
    def __init__(self, result: object) -> None:
        super().__init__()
        self.inner, self.result = nn.Linear(1, 1), result

    def forward(self, x: torch.Tensor) -> object:
        return {"x": {"logits": (self.inner(x), 3)}, "text": "a"}.get(str(self.result), self.result)


def test_the_loss_is_of_the_first_tensor_that_comes_out() -> None:
    assert measure_model(Wrapped("x"), (torch.ones(1, 1),), 1).gradients[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("inputs", "result", "reason"),
    [
        ((torch.ones(1, 7),), "x", "failed on its example inputs: RuntimeError"),
        ((), "x", "failed on its example inputs: TypeError"),
        ((torch.ones(1, 1),), "text", "to return a floating point tensor, got a str"),
        ((torch.ones(1, 1),), (), "to return a floating point tensor, got a tuple"),
        ((torch.ones(1, 1),), torch.ones(1), "failed on its example inputs: RuntimeError"),
    ],
)
def test_a_pass_that_fails_is_one_sentence(
    inputs: tuple[torch.Tensor, ...], result: object, reason: str
) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        measure_model(Wrapped(result), inputs, 1)
    assert "\n" not in str(caught.value)
