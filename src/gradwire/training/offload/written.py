"""Which tensors of the host were written since they were sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

_SAMPLES = 4
"""How many values of each tensor are compared, about: enough to see a write that torch doesn't count."""


class _Seen(NamedTuple):
    """What tensors were like: versions and addresses, views of samples of some, and these samples' bits."""

    marks: list[tuple[int, int]]
    views: list[torch.Tensor]
    owners: torch.Tensor
    bits: torch.Tensor


class Written:
    """Finds out which tensors were written since they were sent last.

    torch counts operations in place, and assigning ``tensor.data`` moves a tensor. Writes through
    ``tensor.data``, or an array of NumPy, do neither: they are seen where they change some of a few values of
    a float32 tensor. Any thread may call it.

    Parameters
    ----------
    tensors
        On the host.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._seen = self._look(None)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Take the tensors as they are for what the block sends; until it ends, ``find`` still finds them."""
        seen = self._look(self._seen)
        yield
        self._seen = seen

    def find(self) -> list[int]:
        """Return the numbers of the tensors that were written."""
        seen = self._seen
        moved = [
            number
            for number, (each, mark) in enumerate(zip(self._tensors, seen.marks, strict=True))
            if _mark(each) != mark
        ]
        if len(moved) == len(self._tensors):
            return moved
        changed = seen.owners[_bits(seen.views) != seen.bits]
        return sorted({*moved, *changed.tolist()})

    def _look(self, before: _Seen | None) -> _Seen:
        marks = [_mark(each) for each in self._tensors]
        if before is not None and [place for _, place in marks] == [place for _, place in before.marks]:
            views, owners = before.views, before.owners
        else:
            samples = [_samples(each) for each in self._tensors]
            views = [each for each in samples if each is not None]
            numbers = [number for number, each in enumerate(samples) if each is not None]
            counts = torch.tensor([each.numel() for each in views], dtype=torch.int64, device="cpu")
            owners = torch.tensor(numbers, dtype=torch.int64, device="cpu").repeat_interleave(counts)
        return _Seen(marks, views, owners, _bits(views))


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()


def _samples(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a view of some values, from the first to about the last."""
    if tensor.dtype != torch.float32 or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.detach().view(-1)[:: max(1, (tensor.numel() - 1) // (_SAMPLES - 1))]


def _bits(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return them as integers, of which a NaN equals itself."""
    if not views:
        return torch.empty(0, dtype=torch.int32, device="cpu")
    return torch.cat([*views]).view(torch.int32)
