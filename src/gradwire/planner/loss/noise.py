"""The noise of gradients, and what a plan's encodings add to it.

Gradients of batches scatter around their mean G. Their variance over its square, ``tr(Sigma) / |G|^2``, is
the simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), section 2.2,
here in batches of a rank: averaging more of those than that gains little.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch

from gradwire import collectives
from gradwire.collectives.matching import messages


def noise_scale(gradients: Sequence[torch.Tensor]) -> float:
    """Return the noise scale of these gradients' batches; infinite where they share no direction.

    They are those of different ranks or steps, of one size, at weights that differ little. Of fewer than two
    nothing can be told, and the scale counts as infinite.
    """
    count = len(gradients)
    if count < 2:
        return math.inf
    flat = [each.detach().to("cpu", torch.float32).flatten() for each in gradients]
    squares = sum(_square(each) for each in flat) / count
    products = (_square(torch.stack(flat).sum(0)) / count - squares) / (count - 1)
    return math.inf if products <= 0 else max(0.0, squares / products - 1)


def added_noise(
    algorithm: str, world: int, noise: float, lost: Callable[[int], float], *, exact: bool = False
) -> float:
    """Return the variance that encodings add to that of the average of all ranks' gradients, as a share.

    An encoding of a sum of k gradients loses ``lost(k)`` of its norm. The square of that norm is
    ``k^2 |G|^2 + k tr(Sigma)``, and steps to a loss are in proportion to ``1 + tr(Sigma) / (p |G|^2)``
    (equation 2.11), p being ``world``, to which the losses of all encodings add.
    """
    if exact:
        return 0.0
    total = 0.0
    for terms, encodings in encoded_terms(algorithm, world).items():
        if math.isinf(noise):
            weight = terms / world
        else:
            weight = (terms**2 + terms * noise) / world**2 / (1 + noise / world)
        total += encodings * weight * lost(terms) ** 2
    return total


@lru_cache(maxsize=256)
def encoded_terms(algorithm: str, world: int) -> Mapping[int, float]:
    """Return how often an element is encoded in an all-reduce, by the number of gradients in it then."""
    collective = collectives.get(algorithm)
    chunks = collective.chunks(world)
    held = [[1] * chunks for _ in range(world)]
    found: Counter[int] = Counter({world: chunks})  # every chunk's owner encodes the result
    for message in messages(collective.reduce(rank, world) for rank in range(world)):
        for chunk in range(message.first, message.last):
            terms = held[message.source][chunk]
            found[terms] += 1
            held[message.target][chunk] += terms
    return {terms: encodings / chunks for terms, encodings in sorted(found.items())}


def _square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
