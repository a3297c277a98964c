"""The tasks of the hosts: the MNIST-MLP, small versions of ImageNet networks, and the convex last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from gradwire.errors import DataError
from gradwire_lab.experiments.a2dtwp.images import read_images
from gradwire_lab.experiments.a2dtwp.models import ResidualBlock
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts import training
from gradwire_lab.experiments.hosts.training import dataset, part_of_step
from gradwire_lab.experiments.papers.exhibit import DIGITS
from gradwire_lab.experiments.papers.pipe_sgd.ways import PLAIN, TIME
from gradwire_lab.job.batches import build, learning_rate
from gradwire_lab.job.data import data_folder

if TYPE_CHECKING:
    from gradwire_lab.experiments.a2dtwp.images import Images
    from gradwire_lab.job.data import Dataset


# AlexNet and ResNet-18 for images of few pixels: the published depths, with few channels.

POOL = 0
"""The entry for a pooling layer in a list of channels."""
ALEXNET, HIDDEN = (16, POOL, 32, POOL, 48, 48, 32), 128
RESNET_18 = ((8, 1), (16, 2), (32, 2), (64, 2))
"""The channels of each stage, and the stride of the first of its two blocks."""


MOST_PIXELS = 8
"""The largest width of images in pixels; wider images are averaged over squares of pixels."""


def networks_build(name: str, pixels: int, classes: int, seed: int) -> nn.Module:
    """Return ``AlexNet`` or ``ResNet-18`` for square images. The weights depend on ``seed`` alone."""
    averaged = -(-pixels // MOST_PIXELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _alexnet(pixels // averaged, classes) if name == "AlexNet" else _resnet(classes)
    return nn.Sequential(nn.AvgPool2d(averaged), model) if averaged > 1 else model


def _alexnet(pixels: int, classes: int) -> nn.Module:
    """Return a network of five convolutions and three fully connected layers, without dropout."""
    layers, inputs = list[nn.Module](), 1
    for width in ALEXNET:
        if width == POOL:
            layers.append(nn.MaxPool2d(2))
            pixels //= 2
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
    layers.append(nn.Flatten())
    for one, other in pairwise([inputs * pixels**2, HIDDEN, HIDDEN]):
        layers += [nn.Linear(one, other), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


def _resnet(classes: int) -> nn.Module:
    """Return a network of a convolution, eight residual blocks, and a fully connected layer."""
    inputs = RESNET_18[0][0]
    conv = nn.Conv2d(1, inputs, 3, padding=1, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(inputs), nn.ReLU()]
    for width, stride in RESNET_18:
        layers += [ResidualBlock(inputs, width, stride), ResidualBlock(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


# The convex task's features: the outputs of the convolutions of a ResNet-20 with fixed weights.

CIFAR = "cifar100"
WEIGHTS = "resnet-cifar10-weights/resnet20*.th"
"""The file below ``$GRADWIRE_DATA`` with the weights of a ResNet-20 for CIFAR-10."""
CHANNELS, BLOCKS, SIDE = (16, 32, 64), 3, 4
"""The channels of the stages, the blocks per stage, and the side of the averaged last outputs in pixels."""
COUNT = CHANNELS[-1] * SIDE * SIDE
AT_ONCE = 250


@dataclass(frozen=True)
class Features:
    """The features of images from a fixed network, centred and scaled with statistics of training images."""

    images: Images
    weights: Mapping[str, torch.Tensor]

    @cached_property
    def train(self) -> torch.Tensor:
        """The features of all training images."""
        return self._all(self.images.train)

    @cached_property
    def test(self) -> torch.Tensor:
        """The features of all test images."""
        return self._all(self.images.test)

    def of_images(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return the features of training images, without caching them."""
        return self._of(self.images.train[chosen])

    def _all(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._of(part) for part in torch.split(images, AT_ONCE)])

    def _of(self, images: torch.Tensor) -> torch.Tensor:
        centre, scale = self._moments
        return (_outputs(self.weights, images) - centre) / scale

    @cached_property
    def _moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and standard deviation of the features of some evenly spaced training images."""
        some = _outputs(self.weights, self.images.train[:: max(1, len(self.images.train_labels) // AT_ONCE)])
        return some.mean(0), some.std() + 1e-12


def source() -> str:
    """Return ``cifar100`` if ``$GRADWIRE_DATA`` holds the images and the weights, else ``digits``."""
    folder = data_folder()
    has_both = folder is not None and (folder / CIFAR).is_dir() and any(folder.glob(WEIGHTS))
    return CIFAR if has_both else DIGITS


@lru_cache(maxsize=1)
def read(name: str) -> Features:
    """Return the features of a data set. Raises ``DataError``."""
    folder = data_folder() or Path()
    if name == DIGITS:
        return Features(read_images(None), drawn())
    return Features(read_images(folder / CIFAR), _read(folder))


def _read(folder: Path) -> dict[str, torch.Tensor]:
    paths = sorted(folder.glob(WEIGHTS))
    if not paths:
        raise DataError(
            f"expected {WEIGHTS} in {folder}, got none; set GRADWIRE_DATA to the folder with this file"
        )
    stored = torch.load(paths[0], map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("module."): tensor for name, tensor in stored.items()}


def drawn() -> dict[str, torch.Tensor]:
    """Return random weights from a fixed seed (initialization of He and others, 2015)."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}

    def add(conv: str, norm: str, inputs: int, outputs: int) -> None:
        deviation = (2 / (9 * inputs)) ** 0.5
        found[f"{conv}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=generator) * deviation
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            found[f"{norm}.{name}"] = torch.full((outputs,), value)

    add("conv1", "bn1", 3, CHANNELS[0])
    inputs = CHANNELS[0]
    for block, outputs, _ in _blocks():
        add(f"{block}.conv1", f"{block}.bn1", inputs, outputs)
        add(f"{block}.conv2", f"{block}.bn2", outputs, outputs)
        inputs = outputs
    return found


def _blocks() -> list[tuple[str, int, int]]:
    """Return the name, channels, and stride of each residual block."""
    return [
        (f"layer{stage}.{block}", channels, 2 if stage > 1 and block == 0 else 1)
        for stage, channels in enumerate(CHANNELS, 1)
        for block in range(BLOCKS)
    ]


def _outputs(weights: Mapping[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the fixed convolutions for uint8 images."""

    def convolve(x: torch.Tensor, conv: str, norm: str, stride: int = 1) -> torch.Tensor:
        y = functional.conv2d(x, weights[f"{conv}.weight"], stride=stride, padding=1)
        mean, variance, weight, bias = (
            weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(y, mean, variance, weight, bias)

    with torch.no_grad():
        # The published network's mean and deviation of ImageNet's colours.
        mean, deviation = (
            torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        x = functional.relu(convolve((images.float() / 255 - mean) / deviation, "conv1", "bn1"))
        for block, channels, stride in _blocks():
            y = functional.relu(convolve(x, f"{block}.conv1", f"{block}.bn1", stride))
            y = convolve(y, f"{block}.conv2", f"{block}.bn2")
            if stride > 1:  # a shortcut without parameters: every other pixel, and new channels of zeros
                padding = channels // 4
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, padding, padding))
            x = functional.relu(x + y)
        return functional.adaptive_avg_pool2d(x, SIDE).flatten(1)


OptionValues = Mapping[str, Any]
"""The options of an exhibit, in their JSON form."""


@dataclass(frozen=True)
class RankTask:
    """One rank's training: losses of its share of a step's batch, learning rates, and the test accuracy.

    Weights are identical on all ranks. A pipeline starts after ``warmup_steps`` synchronous steps.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    rate: Callable[[int], float]
    accuracy: Callable[[], float]
    warmup_steps: int = 0


@dataclass(frozen=True)
class RankWork:
    """One rank's work: the options of an exhibit, a cell, and the rank's number among the workers."""

    options: OptionValues
    cell: Cell
    worker: int
    workers: int

    @property
    def steps(self) -> int:
        """The number of steps of a complete training run, from the cell or else from the options."""
        return int(self.cell["steps"] if "steps" in self.cell else self.options["steps"])

    def part(self, step: int, count: int) -> torch.Tensor:
        """Return the indices of this worker's images in a step, out of ``count`` training images."""
        batch = min(self.options["batch"], count)
        return part_of_step(count, self.cell.get("seed", 0), step, batch, self.worker, self.workers)

    def task(
        self,
        model: nn.Module,
        loss: Callable[[int], torch.Tensor],
        accuracy: Callable[[], float],
        lr: float,
        momentum: float = 0.0,
        warmup_steps: int = 0,
    ) -> RankTask:
        """Return the task of training a model with SGD and a learning rate that rises to ``lr``."""
        steps = self.steps

        def rate(step: int) -> float:
            return learning_rate(min(step, steps - 1), steps, lr)

        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        return RankTask(model, optimizer, loss, rate, accuracy, warmup_steps)

    def of_images(self, model: nn.Module, images: Dataset, lr: float, **more: Any) -> RankTask:
        """Return the task of training an image classifier."""

        def loss(step: int) -> torch.Tensor:
            x, labels = images.train_batch(self.part(step, len(images.train_labels)))
            return nn.functional.cross_entropy(model(x), labels)

        return self.task(model, loss, lambda: training.accuracy(model.eval(), images), lr, **more)


def mnist_mlp(work: RankWork) -> RankTask:
    """Return the task of training the 784-500-500-10 MLP; each momentum has its own learning rate."""
    cell, options = work.cell, work.options
    images, momentum = dataset(cell["data"]), cell.get("momentum", options["momenta"][0])
    model = build("mlp", images.image_shape, images.classes, cell.get("seed", 0))
    lr = options["lrs"][options["momenta"].index(momentum)]
    return work.of_images(model, images, lr, momentum=momentum)


def small_network(work: RankWork) -> RankTask:
    """Return the task of training an AlexNet or a ResNet-18 with few channels."""
    cell, images = work.cell, dataset(work.cell["data"])
    model = networks_build(cell["network"], images.image_shape[0], images.classes, cell["seed"])
    warmup_steps = round(work.options["warmup"] * work.steps)
    return work.of_images(model, images, work.options["lr"], warmup_steps=warmup_steps)


def last_layer(work: RankWork) -> RankTask:
    """Return the task of the layer after a fixed network, which only timed steps compute again."""
    known = read(work.cell["data"])
    images, trained = known.images, work.cell["kind"] not in (TIME, PLAIN)
    layer = nn.Linear(COUNT, images.classes)
    for each in layer.parameters():
        nn.init.zeros_(each)

    def loss(step: int) -> torch.Tensor:
        own = work.part(step, len(images.train_labels))
        x = known.train[own] if trained else known.of_images(own)
        return nn.functional.cross_entropy(layer(x), images.train_labels[own])

    def accuracy() -> float:
        with torch.inference_mode():
            return float((layer(known.test).argmax(1) == images.test_labels).float().mean())

    return work.task(layer, loss, accuracy, work.options["lr"])


TASKS: Mapping[str, Callable[[RankWork], RankTask]] = {
    "mnist-mlp": mnist_mlp,
    "small-network": small_network,
    "last-layer": last_layer,
}
