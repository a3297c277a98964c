from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradwire.errors import DataError
from gradwire_lab.experiments.papers.pipe_sgd import tasks as features
from gradwire_lab.experiments.papers.pipe_sgd.tasks import COUNT, drawn, read, source


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder like ``$GRADWIRE_DATA`` with a few images and drawn weights."""
    (tmp_path / "cifar100").mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 5)):
        x = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        np.savez(tmp_path / "cifar100" / f"{part}.npz", x=x, y=np.arange(count))
    weights = tmp_path / "resnet-cifar10-weights"
    weights.mkdir()
    stored = {f"module.{name}": tensor for name, tensor in drawn().items()}
    torch.save({"state_dict": stored}, weights / "resnet20-0.th")
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path))
    read.cache_clear()
    return tmp_path


def test_features_are_centred_and_those_of_images_are_the_same(few: Path) -> None:
    assert source() == "cifar100"
    found = read("cifar100")
    assert found.train.shape == (12, COUNT)
    assert found.test.shape == (5, COUNT)
    assert found.images.classes == 12
    assert found.train.mean(0).abs().max() < 1e-5
    some = torch.tensor([7, 2])
    torch.testing.assert_close(found.of_images(some), found.train[some])
    assert len(found.weights) == 19 * 5, "19 convolutions and their normalisations"
    assert few.is_dir()


def test_the_network_is_a_resnet_20_whose_shortcuts_have_no_parameters() -> None:
    """The oracle is written with torch's modules."""
    weights = drawn()

    def convolution(name: str, norm: str, stride: int = 1) -> nn.Sequential:
        shape = weights[f"{name}.weight"].shape
        conv = nn.Conv2d(shape[1], shape[0], 3, stride, 1, bias=False)
        bn = nn.BatchNorm2d(shape[0])
        conv.load_state_dict({"weight": weights[f"{name}.weight"]})
        bn.load_state_dict(
            {key: weights[f"{norm}.{key}"] for key in ("weight", "bias", "running_mean", "running_var")},
            strict=False,
        )
        return nn.Sequential(conv, bn).eval()

    images = torch.randint(
        0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        x = (images / 255 - mean[:, None, None]) / std[:, None, None]
        x = convolution("conv1", "bn1")(x).relu()
        for stage in (1, 2, 3):
            for block in range(3):
                name = f"layer{stage}.{block}"
                stride = 2 if stage > 1 and block == 0 else 1
                y = convolution(f"{name}.conv1", f"{name}.bn1", stride)(x).relu()
                y = convolution(f"{name}.conv2", f"{name}.bn2")(y)
                if stride == 2:
                    kept = torch.zeros_like(y)
                    quarter = y.shape[1] // 4
                    kept[:, quarter : 3 * quarter] = x[:, :, ::2, ::2]
                    x = kept
                x = (x + y).relu()
        expected = nn.AvgPool2d(2)(x).flatten(1)
    torch.testing.assert_close(features._outputs(weights, images), expected, rtol=1e-4, atol=1e-4)


def test_without_the_weights_it_is_the_digits(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (few / "resnet-cifar10-weights" / "resnet20-0.th").unlink()
    assert source() == "digits"
    with pytest.raises(DataError, match=r"expected .*resnet20.* got none; set GRADWIRE_DATA"):
        read("cifar100")
    monkeypatch.delenv("GRADWIRE_DATA")
    assert source() == "digits"
