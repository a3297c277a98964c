"""Models that learn in seconds, each with its own batches: what tests judge a codec by.

None of them can be learned to a loss of zero, so that losses may be compared as ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

Batch = tuple[torch.Tensor, torch.Tensor]
_FEATURES, _TARGETS = 16, 4
_KINDS, _SIDE = 8, 10
_WORDS, _LENGTH, _WIDTH = 256, 16, 32


@dataclass(frozen=True)
class SmallTask:
    """A model, its data, and the rates at which either optimizer halves the loss in ``steps``.

    ``draw(count, generator)`` returns a batch.
    """

    make: Callable[[], nn.Module]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    draw: Callable[[int, torch.Generator], Batch]
    sgd_rate: float
    adamw_rate: float
    steps: int
    batch: int = 32

    def batches(self, rank: int) -> list[Batch]:
        """Return a rank's own."""
        seeds = (torch.Generator().manual_seed(1000 * step + rank) for step in range(self.steps))
        return [self.draw(self.batch, generator) for generator in seeds]

    def judge(self, model: nn.Module) -> float:
        """Return the loss on what is never trained on."""
        x, y = self.draw(512, torch.Generator().manual_seed(999))
        with torch.no_grad():
            return float(self.loss(model(x), y))

    def fresh(self) -> nn.Module:
        """Return the model with its first weights, always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return self.make()

    def optimizer(self, kind: str, model: nn.Module, scale: float) -> torch.optim.Optimizer:
        """Return one whose steps do not depend on the factor ``scale`` of loss and gradients."""
        if kind == "sgd":
            return torch.optim.SGD(model.parameters(), lr=self.sgd_rate / scale, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=self.adamw_rate, eps=1e-8 * scale)


def _fixed(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


_TEACHER = _fixed(_FEATURES, 24, seed=3) / 4, _fixed(24, _TARGETS, seed=4) / 24**0.5
_PICTURE = _fixed(_KINDS, 1, _SIDE, _SIDE, seed=6)
_PICTURES = torch.stack([_PICTURE.roll(shift, dims=-1) for shift in range(3)])
_BY_RANK = 1.0 / torch.arange(1, _WORDS + 1)
_NEXT = torch.randperm(_WORDS, generator=torch.Generator().manual_seed(8))


def _draw_values(count: int, generator: torch.Generator) -> Batch:
    """Draw values that a small network makes, with noise."""
    x = torch.randn(count, _FEATURES, generator=generator)
    y = (x @ _TEACHER[0]).tanh() @ _TEACHER[1]
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)


def _draw_pictures(count: int, generator: torch.Generator) -> Batch:
    """Draw noisy pictures, shifted a little, of which one in ten has any label."""
    kinds = torch.randint(_KINDS, (count,), generator=generator)
    shifts = torch.randint(len(_PICTURES), (count,), generator=generator)
    noise = torch.randn(count, 1, _SIDE, _SIDE, generator=generator)
    wrong = torch.rand(count, generator=generator) < 0.1
    labels = torch.where(wrong, torch.randint(_KINDS, (count,), generator=generator), kinds)
    return _PICTURES[shifts, kinds] + 0.7 * noise, labels


def _draw_text(count: int, generator: torch.Generator) -> Batch:
    """Draw words by Zipf's law, most of them followed by the one that belongs to them.

    Most words are in few of the batches, so most rows of an embedding have a gradient rarely.
    """
    drawn = torch.multinomial(_BY_RANK, count * (_LENGTH + 1), replacement=True, generator=generator)
    text = drawn.view(count, _LENGTH + 1)
    follows = torch.rand(text.shape, generator=generator) < 0.8
    for place in range(1, _LENGTH + 1):
        text[:, place] = torch.where(follows[:, place], _NEXT[text[:, place - 1]], text[:, place])
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _mlp() -> nn.Module:
    sizes = nn.Linear(_FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, _TARGETS)
    return nn.Sequential(*sizes)


def _cnn() -> nn.Module:
    convolutions = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(144, _KINDS))


class _TiedTransformer(nn.Module):
    """A decoder whose embeddings are its output weights, too: frequent rows, rare ones and LayerNorms."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_LENGTH, _WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.1)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(_WIDTH)
        self.out = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_LENGTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.words(text) + self.places.weight, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(self.norm(x))
        return logits.flatten(0, 1)


class _Sparse(nn.Module):
    """A wide layer of which an input switches few units on: of many weights no gradient but zero."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(_FEATURES, 512), nn.Linear(512, _TARGETS)
        nn.init.constant_(self.wide.bias, -1.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.wide(x).relu())
        return out


def _of_words(logits: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, text.flatten())


SMALL_TASKS = {
    "mlp": SmallTask(_mlp, mse_loss, _draw_values, 0.1, 3e-3, 40),
    "cnn": SmallTask(_cnn, cross_entropy, _draw_pictures, 0.02, 3e-3, 60),
    "transformer": SmallTask(_TiedTransformer, _of_words, _draw_text, 0.1, 1e-2, 60, batch=8),
    "sparse": SmallTask(_Sparse, mse_loss, _draw_values, 0.3, 5e-3, 60),
}
