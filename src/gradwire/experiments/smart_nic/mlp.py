"""The perceptron that hosts train: square layers, each of whose passes can be run by itself.

It is the paper's (section III), with fewer and narrower layers. Images are projected to the layers' width,
and the first ten outputs are the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from gradwire.job.batches import learning_rate
from gradwire.job.data import find, load

RATE, MOMENTUM = 0.05, 0.9
"""The peak of the learning rate, which falls along a cosine, and SGD's momentum; the paper has neither."""
PROJECTION = 0
"""The seed of the projection, which all hosts share."""


@dataclass(frozen=True)
class Images:
    """One host's own training images and all test images, projected, with their classes."""

    own: torch.Tensor
    classes: torch.Tensor
    test: torch.Tensor
    test_classes: torch.Tensor


def images(name: str, width: int, rank: int, world: int) -> Images:
    """Read a data set and project it to ``width`` values by a random matrix."""
    data = load(name, find(name))
    share = torch.arange(rank, len(data.train_labels), world)
    own, classes = data.train_batch(share)
    test, test_classes = next(data.test_batches(len(data.test_labels)))
    pixels = own[0].numel()
    generator = torch.Generator().manual_seed(PROJECTION)
    matrix = torch.randn(pixels, width, generator=generator) / pixels**0.5
    return Images(own.flatten(1) @ matrix, classes, test.flatten(1) @ matrix, test_classes)


class Perceptron:
    """Layers of ``width`` x ``width`` weights with ReLU between them, trained by SGD with momentum.

    Parameters
    ----------
    images
        What it is trained and judged by.
    layers, width, batch
        Its size, and the images of a step.
    seed
        Of the weights, which are the same on all hosts, and with ``rank`` of the batches.
    steps
        After which the learning rate is zero.

    Attributes
    ----------
    buckets
        The gradients of each layer, from the input up; an exchange replaces them by the average.
    """

    def __init__(
        self, images: Images, *, layers: int, width: int, batch: int, seed: int, rank: int, steps: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers = range(layers)
        self.weights = [
            torch.randn(width, width, generator=generator) * (2 / width) ** 0.5 for _ in self.layers
        ]
        self.buckets = [torch.zeros(width * width) for _ in self.layers]
        self._moments = [torch.zeros(width, width) for _ in self.layers]
        self._images, self._batch, self._steps = images, batch, steps
        self._draw = torch.Generator().manual_seed(1000 * seed + rank)
        self._inputs: list[torch.Tensor] = []
        self._delta = torch.empty(0)
        self._rate, self._step = 0.0, 0

    def forward(self) -> None:
        """Draw a batch, and compute all layers' outputs and the gradient of the loss."""
        drawn = torch.randint(len(self._images.own), (self._batch,), generator=self._draw)
        self._rate = learning_rate(self._step, self._steps, RATE)
        self._step += 1
        outputs, self._inputs = self._outputs(self._images.own[drawn])
        self._delta = outputs.softmax(1)
        self._delta[torch.arange(self._batch), self._images.classes[drawn]] -= 1
        self._delta /= self._batch

    def backward(self, layer: int) -> None:
        """Compute a layer's gradients, into its bucket, and what the layer below needs."""
        inputs, weights = self._inputs[layer], self.weights[layer]
        torch.mm(inputs.T, self._delta, out=self.buckets[layer].view_as(weights))
        if layer > 0:
            self._delta = torch.mm(self._delta, weights.T).mul_(inputs > 0)

    def update(self, layer: int) -> None:
        """Apply a layer's averaged gradients."""
        moment = self._moments[layer].mul_(MOMENTUM).add_(self.buckets[layer].view_as(self._moments[layer]))
        self.weights[layer].add_(moment, alpha=-self._rate)

    def judge(self) -> tuple[float, float]:
        """Return the accuracy and the loss on the test images."""
        outputs, _ = self._outputs(self._images.test)
        right = (outputs.argmax(1) == self._images.test_classes).float().mean()
        return float(right), float(cross_entropy(outputs, self._images.test_classes))

    def _outputs(self, values: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last layer's outputs, and the inputs of each layer."""
        inputs = []
        for layer, weights in enumerate(self.weights):
            inputs.append(values)
            values = torch.mm(values, weights)
            if layer + 1 < len(self.weights):
                values.relu_()
        return values, inputs
