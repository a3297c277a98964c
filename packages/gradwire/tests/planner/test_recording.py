from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.errors import DataError, TensorError
from gradwire.planner.model import load_gradients, record_gradients


def passes(model: nn.Module, count: int) -> list[torch.Tensor]:
    """Run backward passes; return the flat gradients by hand."""
    found = []
    for k in range(count):
        model.zero_grad()
        model(torch.full((2, 3), float(k + 1))).square().sum().backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    return found


def test_it_keeps_the_gradients_of_the_first_passes() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with record_gradients(model, steps=2) as record:
        wanted = passes(model, 4)
    assert len(record.gradients) == 2
    for found, each in zip(record.gradients, wanted, strict=False):
        assert torch.equal(found, each)


def test_it_leaves_no_hook_behind_even_after_an_error() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(ZeroDivisionError), record_gradients(model) as record:
        raise ZeroDivisionError
    passes(model, 1)
    assert record.gradients == []


def test_a_parameter_that_backward_does_not_reach_counts_as_zero() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 1, bias=False), nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.used(x)
            return found

    model = Partly()
    with record_gradients(model, steps=3) as record:
        wanted = passes(model, 2)
    assert [len(each) for each in record.gradients] == [7, 7]
    for found, each in zip(record.gradients, wanted, strict=True):
        assert torch.equal(found, torch.cat([each, torch.zeros(4)]))


def test_half_precision_becomes_float32() -> None:
    model = nn.Linear(3, 1).to(torch.bfloat16)
    with record_gradients(model) as record:
        model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    assert record.gradients[0].dtype == torch.float32


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    with record_gradients(model, 2) as record:
        passes(model, 2)
    record.save(tmp_path / "gradients.pt")
    loaded = load_gradients(tmp_path / "gradients.pt")
    assert all(torch.equal(*pair) for pair in zip(loaded, record.gradients, strict=True))


def test_what_cannot_be_recorded_or_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match="0 parameters"), record_gradients(nn.ReLU()):
        pass
    with pytest.raises(TensorError, match="0 steps"), record_gradients(nn.Linear(1, 1), 0):
        pass
    with record_gradients(nn.Linear(1, 1)) as record:
        pass
    with pytest.raises(DataError, match="expected at least one recorded gradient, got none"):
        record.save(tmp_path / "none.pt")
    record.gradients.append(torch.ones(1))
    (tmp_path / "gradients.pt").touch()
    with pytest.raises(DataError, match="cannot be written"):
        record.save(tmp_path / "gradients.pt" / "nowhere")


def test_a_flipped_bit_in_a_gradient_is_an_error(tmp_path: Path) -> None:
    with record_gradients(nn.Linear(1, 1)) as record:
        pass
    record.gradients.append(torch.ones(1000))
    path = tmp_path / "gradients.pt"
    record.save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert not torch.equal(torch.load(path)[0], torch.ones(1000)), "torch does not notice it"
    with pytest.raises(DataError, match=r"gradients\.pt is damaged: its checksum doesn't match"):
        load_gradients(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "in .*, got a file that torch.load cannot read; write the file with gradwire.record_grad"),
        (b"PK\x03\x04 no archive", "got a file that torch.load cannot read"),
        ({"a": 1}, "expected a list for the gradients in .*, got {'a': 1}; write the file"),
        ([], "expected gradients of equal size in .*, got"),
        ([torch.ones(2), 3], r"expected a tensor on the CPU for \[1\] in the gradients in .*, got 3; write"),
        ([torch.ones(2, dtype=torch.int64)], "got torch.int64"),
        ([torch.ones(2), torch.ones(3)], "equal size"),
        ([torch.ones(0)], "equal size"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    path = tmp_path / "gradients.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(DataError, match=reason) as caught:
        load_gradients(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.pt cannot be read: No such file"):
        load_gradients(tmp_path / "missing.pt")
