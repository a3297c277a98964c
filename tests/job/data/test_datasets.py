import gzip
import hashlib
import os
import struct
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from gradwire.errors import DataError
from gradwire.job.data import find, load, sources
from gradwire.job.data.sources import NAMES, SOURCES, Source


def write(folder: Path, train: int = 30, test: int = 20, test_labels: int = 20, test_rows: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (train, 4, 5)),
        np.arange(train) % 10,
        rng.integers(0, 256, (test, test_rows, 5)),
        np.arange(test_labels) % 10,
    )
    for name, array in zip(NAMES, arrays, strict=True):
        header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0))
    return folder


@pytest.mark.parametrize("place", [".", "mnist"])
def test_files_are_found_in_the_folder_or_below(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / place)
    found = find("mnist", tmp_path)
    assert found is not None
    assert found.resolve() == folder.resolve()


def test_the_variable_names_the_folder_and_the_option_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a"), write(tmp_path / "b" / "fashion-mnist")
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path / "b"))
    assert find("fashion") == tmp_path / "b" / "fashion-mnist"
    assert find("fashion", tmp_path / "a") == tmp_path / "a"


def test_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / NAMES[3]).unlink()
    with pytest.raises(DataError, match=f"MNIST is not complete in .*: put {NAMES[3]} there"):
        find("mnist", tmp_path)


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
    with pytest.raises(DataError, match="holds 19 labels for 20 images"):
        load("mnist", write(tmp_path, test_labels=19))


def test_train_and_test_images_must_be_alike(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="different sizes"):
        load("mnist", write(tmp_path, test_rows=6))


def test_the_other_set_under_the_same_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    md5 = hashlib.md5((folder / NAMES[0]).read_bytes()).hexdigest()
    fashion = Source("Fashion-MNIST", "fashion-mnist", "", (md5, "", "", ""))
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": SOURCES["mnist"], "fashion": fashion}))
    with pytest.raises(DataError, match="belongs to Fashion-MNIST, but MNIST is asked for"):
        load("mnist", folder)
    assert len(load("fashion", folder).train_labels) == 30


def test_what_is_missing_is_downloaded_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = write(tmp_path / "served")
    md5 = [hashlib.md5((served / name).read_bytes()).hexdigest() for name in NAMES]
    source = Source("MNIST", "mnist", f"{served.as_uri()}/", (md5[0], md5[1], md5[2], md5[3]))
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": source}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    folder = find("mnist")
    assert folder == tmp_path / "cache" / "gradwire" / "mnist"
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(NAMES)
    (served / NAMES[0]).unlink()
    assert find("mnist") == folder, "what is there is not fetched again"


def test_without_a_network_the_error_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("MNIST", "mnist", "http://127.0.0.1:9/", SOURCES["mnist"].md5)
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": source}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    with pytest.raises(DataError, match=f"cannot fetch .*put {', '.join(NAMES)} of MNIST into a folder"):
        find("mnist")


@pytest.mark.data
@pytest.mark.skipif("GRADWIRE_DATA" not in os.environ, reason="GRADWIRE_DATA names no folder")
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion", 0.2860, 0.3530)])
def test_the_published_sets_have_their_published_statistics(name: str, mean: float, std: float) -> None:
    data = load(name, find(name))
    assert (len(data.train_labels), len(data.test_labels)) == (60000, 10000)
    assert data.mean / 255 == pytest.approx(mean, abs=1e-4)
    assert data.std / 255 == pytest.approx(std, abs=1e-4)
