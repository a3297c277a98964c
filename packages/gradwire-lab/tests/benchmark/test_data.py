from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.errors import SpecError
from gradwire_lab.benchmark import data as module
from gradwire_lab.benchmark.data import Data, DataSpec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("laplace", DataSpec("laplace", 1e-3)),
        ("laplace:0.5", DataSpec("laplace", 0.5)),
        ("normal", DataSpec("normal", 1.0)),
        ("grad.pt", DataSpec("file", file=Path("grad.pt"))),
    ],
)
def test_words_for_data(text: str, spec: DataSpec) -> None:
    assert DataSpec.parse(text) == spec


@pytest.mark.parametrize("text", ["", "zeros", "laplace:", "laplace:x", "normal:0", "normal:inf", "grad.npy"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"expected --values such as laplace:1e-3, normal:1, or FILE\.pt"):
        DataSpec.parse(text)


def test_numbers_have_their_distribution_and_are_the_same_everywhere() -> None:
    first, second = (Data(DataSpec("laplace", 1e-3), 100_000) for _ in range(2))
    bucket = first.bucket(1, 100_000)
    assert torch.equal(bucket, second.bucket(1, 100_000))
    assert bucket.abs().mean().item() == pytest.approx(1e-3, rel=0.02)
    other = first.bucket(2, 100_000)
    assert abs(np.corrcoef(bucket.numpy(), other.numpy())[0, 1]) < 0.02, "ranks have their own gradients"


def test_the_sum_is_that_of_all_buckets() -> None:
    data = Data(DataSpec("normal", 1.0), 1000)
    buckets = np.stack([data.bucket(rank, 1000).numpy() for rank in range(5)]).astype(np.float64)
    np.testing.assert_allclose(data.exact_sum(5, 1000).numpy(), buckets.sum(axis=0))
    np.testing.assert_allclose(data.envelope(5, 1000).numpy(), np.abs(buckets).sum(axis=0), rtol=1e-6)


def test_a_bucket_longer_than_the_pool_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POOL", 10)
    data = Data(DataSpec("normal", 1.0), 35)
    bucket = data.bucket(1, 35)
    assert bucket.shape == (35,)
    assert torch.equal(bucket[:25], bucket[10:])
    assert len(set(bucket[:10].tolist())) == 10


@pytest.mark.parametrize("container", ["tensor", "list", "dict"])
def test_a_recorded_gradient_is_used_in_order(tmp_path: Path, container: str) -> None:
    parts = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 10.0)]
    saved: dict[str, Any] = {
        "tensor": torch.arange(10.0),
        "list": parts,
        "dict": {"weight": parts[0], "steps": torch.tensor([7]), "bias": parts[1]},
    }
    torch.save(saved[container], tmp_path / "grad.pt")
    data = Data(DataSpec.parse(str(tmp_path / "grad.pt")), 10)
    assert data.bucket(0, 10).tolist() == list(range(10))


@pytest.mark.parametrize("content", [None, b"nonsense", "text", [1.0], torch.tensor([1.0, float("nan")]), []])
def test_a_file_without_finite_floats_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "grad.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(SpecError, match=r"--values .*grad\.pt"):
        Data(DataSpec.parse(str(path)), 10)
