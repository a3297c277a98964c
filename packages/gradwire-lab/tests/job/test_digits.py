import gzip
import importlib.machinery
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from gradwire.errors import DataError
from gradwire_lab.job.data import read_digits


def test_it_is_scikit_learns_data_each_image_once() -> None:
    train_images, train_labels, test_images, test_labels = read_digits()
    ours = np.concatenate([test_images.numpy(), train_images.numpy()]).reshape(-1, 64)
    labels = np.concatenate([test_labels.numpy(), train_labels.numpy()])
    from sklearn.datasets import load_digits  # takes a second, which other workers need not spend

    theirs = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    assert np.array_equal(ours, theirs.data[order])
    assert np.array_equal(labels, theirs.target[order])
    assert (len(train_images), len(test_images)) == (1438, 359)


def test_both_parts_have_every_class() -> None:
    _, train_labels, _, test_labels = read_digits()
    assert train_labels.bincount().min() > 100
    assert test_labels.bincount().min() > 20


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DataError, match=r"pip install './packages/gradwire-lab\[train\]'"):
        read_digits()


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b"1,2,x\n", mtime=0),
        gzip.compress(b"1,2,3\n", mtime=0),
        gzip.compress(b"1,2,3\n", mtime=0)[:10] + b"\xff" * 20,
    ],
)
def test_a_damaged_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file = tmp_path / "datasets" / "data" / "digits.csv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    spec = importlib.machinery.ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    with pytest.raises(DataError, match="reinstall scikit-learn"):
        read_digits()
