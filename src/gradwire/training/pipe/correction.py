"""What a pipeline does about the staleness of its gradients: nothing (the paper's), or eager updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.training.gradients.flat import FlatGradients

CORRECTIONS = ("eager", "none")
"""The default first."""


class Correction(ABC):
    """At which weights a rank computes while averages are on their way to it."""

    CORRECTS: bool
    """Whether those weights differ from the masters, which are the same on all ranks."""

    @abstractmethod
    def ahead(self) -> AbstractContextManager[None]:
        """Let the model hold the weights to compute at, within a ``with`` block."""

    @abstractmethod
    def note(
        self, gradients: FlatGradients, scheduled: list[dict[str, Any]], absent: Collection[int] = ()
    ) -> None:
        """Note this rank's own gradient, which is about to be handed over, and its learning rate.

        ``absent`` are the numbers of the parameters that backward has not reached.
        """

    @abstractmethod
    def keep(self, count: int) -> None:
        """Forget all but the newest ``count`` own gradients: the averages of the others are applied."""

    @abstractmethod
    def own(self) -> list[torch.Tensor]:
        """Return copies of the own gradients that are kept, oldest first, 1-D float32."""

    @abstractmethod
    def resume(
        self,
        own: Sequence[torch.Tensor],
        scheduled: Sequence[list[dict[str, Any]]],
        absent: Sequence[Collection[int]],
    ) -> None:
        """Keep these instead; every gradient has its learning rate, and what backward had not reached."""


class Stale(Correction):
    """Compute at the masters: Pipe-SGD as in its paper (Li et al., NeurIPS 2018, algorithm 1)."""

    CORRECTS = False

    def ahead(self) -> AbstractContextManager[None]:
        """Leave the masters in the model."""
        return nullcontext()

    def note(
        self, gradients: FlatGradients, scheduled: list[dict[str, Any]], absent: Collection[int] = ()
    ) -> None:
        """Keep nothing."""

    def keep(self, count: int) -> None:
        """Keep nothing."""

    def own(self) -> list[torch.Tensor]:
        """Return nothing."""
        return []

    def resume(
        self,
        own: Sequence[torch.Tensor],
        scheduled: Sequence[list[dict[str, Any]]],
        absent: Sequence[Collection[int]],
    ) -> None:
        """Keep nothing."""


def check_correction(correction: str) -> str:
    """Return ``correction``. Raises ``SpecError`` for one that there is not."""
    if correction not in CORRECTIONS:
        raise SpecError(f"a correction is one of {', '.join(CORRECTIONS)}, but {correction!r} came")
    return correction


def check_model(model: nn.Module) -> None:
    """Raise ``SpecError`` for a model whose forward pass writes parameters, which eager updates take back."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise SpecError(
                f"{name or 'the model'} has max_norm={module.max_norm:g}, so its forward pass writes its "
                'weights, which an eager pipeline takes back; leave max_norm out, or use correction="none"'
            )
