from __future__ import annotations

import io
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from gradwire.errors import DataError
from gradwire_lab.experiments.papers.inceptionn import full_size
from gradwire_lab.experiments.papers.inceptionn.full_size import (
    DEVIATION,
    FULL_SIZE,
    MEAN,
    Photographs,
    build,
)

COUNTS = {"AlexNet": 60_965_224, "ResNet-50": 25_557_032, "VGG-16": 138_357_544}
"""Caffe's AlexNet, and torchvision's other two."""


@pytest.mark.parametrize("name", FULL_SIZE)
def test_networks_have_as_many_weights_as_table_1_says(name: str) -> None:
    """Counted from the layers' shapes elsewhere; the images fit, and there are a thousand classes."""
    with torch.device("meta"):
        network = build(name)
        assert network(torch.empty(2, 3, FULL_SIZE[name].side, FULL_SIZE[name].side)).shape == (2, 1000)
    assert sum(each.numel() for each in network.parameters()) == full_size.count(name) == COUNTS[name]


def test_alexnet_begins_as_caffe_s_and_others_as_torchvision_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> torch.nn.Module:
        linear = [torch.nn.Linear(100, 100) for _ in range(7)]
        return torch.nn.Sequential(torch.nn.Conv2d(3, 200, 5), *linear)

    monkeypatch.setattr(full_size, "_BUILDERS", dict.fromkeys(FULL_SIZE, small))
    he, default = (2 / (200 * 25)) ** 0.5, 1 / 300**0.5
    for name, deviations, biases in (
        ("AlexNet", [*[0.01] * 5, 0.005, 0.005, 0.01], [0, 0.1, 0, *[0.1] * 4, 0]),
        ("ResNet-50", [he, *[default] * 7], []),
        ("VGG-16", [he, *[0.01] * 7], [0.0] * 8),
    ):
        layers = [dict(each.named_parameters()) for each in build(name).children()]
        assert [float(each["weight"].detach().std()) for each in layers] == pytest.approx(
            deviations, rel=0.05
        )
        if name != "ResNet-50":  # whose convolutions have no biases
            assert [float(each["bias"].detach()[0]) for each in layers] == pytest.approx(biases)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive of four classes with one image of 10 pixels each, of one gray value."""
    image = pytest.importorskip("PIL.Image")
    archive = tmp_path / "imagenet1000" / "images.zip"
    archive.parent.mkdir()
    with ZipFile(archive, "w") as zipped:
        for number in range(4):
            file = io.BytesIO()
            image.new("RGB", (10, 10), (50 * number,) * 3).save(file, "JPEG")
            zipped.writestr(f"n0{4 - number}/image.jpg", file.getvalue())
        zipped.writestr("LICENSE", "")
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path))
    return archive


@pytest.mark.usefixtures("photographs")
def test_images_are_scaled_and_classes_follow_the_names() -> None:
    assert full_size.missing() == ""
    images, labels = Photographs(20, DEVIATION, seed=1).batch(0, 8)
    assert images.shape == (8, 3, 20, 20)
    assert labels.tolist()[:4] == labels.tolist()[4:], "they come again"
    assert sorted(labels.tolist()[:4]) == [0, 1, 2, 3]
    for image, label in zip(images, labels.tolist(), strict=True):
        gray = 50 * (3 - label)
        colors = [(gray / 255 - mean) / deviation for mean, deviation in zip(MEAN, DEVIATION, strict=True)]
        assert torch.allclose(image, torch.tensor(colors).view(3, 1, 1).expand_as(image), atol=0.03)
    others = Photographs(20, DEVIATION, seed=2).batch(0, 4)[1]
    assert labels.tolist()[:4] != others.tolist()


@pytest.mark.usefixtures("photographs")
def test_each_step_s_gradient_is_that_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer without momentum yet: its first update is the rate times the gradient and the decay."""
    made: list[torch.nn.Module] = []

    def small() -> torch.nn.Module:
        pooled = torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
        made.append(torch.nn.Sequential(*pooled, torch.nn.Linear(12, 1000)))
        return made[-1]

    monkeypatch.setattr(full_size, "_BUILDERS", {"AlexNet": small})
    gradients: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []

    def watch(step: int, gradient: torch.Tensor) -> None:
        assert step == len(gradients)
        gradients.append(gradient)
        weights.append(torch.cat([each.detach().flatten() for each in made[0].parameters()]))

    losses = full_size.train("AlexNet", 2, 2, 1, watch)
    assert full_size.FULL_SIZE["AlexNet"].rate == 0.01
    wanted = weights[0] - 0.01 * (gradients[0] + 5e-5 * weights[0])
    assert torch.allclose(weights[1], wanted, atol=1e-6)
    assert len(losses) == 2


def test_without_images_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"expected imagenet1000/\*\.zip in \$GRADWIRE_DATA, got none"):
        Photographs(20, DEVIATION, seed=1)
    monkeypatch.setattr(full_size, "find_spec", lambda _name: None)
    assert "pillow" in full_size.missing()
