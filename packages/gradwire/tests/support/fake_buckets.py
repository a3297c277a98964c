"""Buckets as DDP hands them to its hook, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class FakeBucket:
    """Says what a ``GradBucket`` says; without ``owners`` the gradients are one parameter's."""

    number: int
    gradients: torch.Tensor
    last: bool = False
    owners: list[torch.Tensor] = field(default_factory=list)

    def index(self) -> int:
        return self.number

    def buffer(self) -> torch.Tensor:
        return self.gradients

    def is_last(self) -> bool:
        return self.last

    def parameters(self) -> list[torch.Tensor]:
        return self.owners or [self.gradients]
