import hashlib
import os
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from gradwire.errors import DataError
from gradwire_lab.job import data as sources
from gradwire_lab.job.data import NAMES, SOURCES, Source, find, load
from support.idx_files import write


def test_digits_need_no_folder() -> None:
    assert find("digits") is None
    assert load("digits").image_shape == (8, 8)


def test_batches_are_normalised_and_in_order(tmp_path: Path) -> None:
    data = load("mnist", write(tmp_path))
    images, labels = data.train_batch(torch.arange(30))
    assert images.shape == (30, 1, 4, 5)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)
    assert labels.tolist() == [number % 10 for number in range(30)]
    picked, picked_labels = data.train_batch(torch.tensor([7, 3]))
    assert torch.equal(picked, images[[7, 3]])
    assert picked_labels.tolist() == [7, 3]


def test_the_test_set_comes_whole_in_batches(tmp_path: Path) -> None:
    data = load("mnist", write(tmp_path))
    batches = list(data.test_batches(size=8))
    assert [len(labels) for _, labels in batches] == [8, 8, 4]
    whole = torch.cat([images for images, _ in batches])[:, 0] * data.std + data.mean
    assert torch.equal(whole.round().to(torch.uint8), data.test_images)


def test_labels_must_match_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected 20 labels in .*, got 19"):
        load("mnist", write(tmp_path, test_labels=19))


def test_train_and_test_images_must_be_alike(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected images of equal size"):
        load("mnist", write(tmp_path, test_rows=6))


def test_the_other_set_under_the_same_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    md5 = hashlib.md5((folder / NAMES[0]).read_bytes()).hexdigest()
    fashion = Source("Fashion-MNIST", "fashion-mnist", "", (md5, "", "", ""))
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": SOURCES["mnist"], "fashion": fashion}))
    with pytest.raises(DataError, match="expected MNIST, got Fashion-MNIST in"):
        load("mnist", folder)
    assert len(load("fashion", folder).train_labels) == 30


@pytest.mark.data
@pytest.mark.skipif("GRADWIRE_DATA" not in os.environ, reason="GRADWIRE_DATA names no folder")
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion", 0.2860, 0.3530)])
def test_the_published_sets_have_their_published_statistics(name: str, mean: float, std: float) -> None:
    data = load(name, find(name))
    assert (len(data.train_labels), len(data.test_labels)) == (60000, 10000)
    assert data.mean / 255 == pytest.approx(mean, abs=1e-4)
    assert data.std / 255 == pytest.approx(std, abs=1e-4)
