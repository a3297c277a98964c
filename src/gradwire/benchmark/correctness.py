"""Is an all-reduce right: against the exact sum, and with the same bits on all ranks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.benchmark.allreduce import TORCH, Configuration, Gather
from gradwire.benchmark.data import Data
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError
from gradwire.exchange.error_bound import error_bound, rounding_bound


@dataclass(frozen=True)
class Checked:
    """What a checked all-reduce was like; it was right, or there would be an error instead.

    ``wire_nbytes`` are the bytes that each rank sent, headers included; ``ratio`` is all ranks' bytes of
    floats per byte sent. ``largest_error`` is against the exact sum, ``allowed_error`` what the codec
    promises (inf: nothing). ``first_s`` is the time of the slowest rank, buffers and connections included.
    """

    wire_nbytes: tuple[int, ...]
    ratio: float
    largest_error: float
    allowed_error: float
    first_s: float


def check_all_reduce(
    all_reduce: Callable[[torch.Tensor], ExchangeCost],
    configuration: Configuration,
    data: Data,
    rank: int,
    world: int,
    gather: Gather,
) -> Checked:
    """Sum once, on all ranks, and compare with the exact sum and among the ranks. Raises ``JobError``."""
    bucket = data.bucket(rank, configuration.count)
    start = time.perf_counter()
    accounting = all_reduce(bucket)
    spent_s = time.perf_counter() - start
    exact = data.exact_sum(world, configuration.count)
    error = (bucket.double() - exact).abs_().max().item()
    figures = [accounting.raw_nbytes, accounting.wire_nbytes, error, spent_s]
    raw, wire, errors, spent = gather(torch.tensor(figures, dtype=torch.float64)).T
    checked = Checked(
        wire_nbytes=tuple(int(nbytes) for nbytes in wire.tolist()),
        ratio=(raw.sum() / wire.sum()).item() if wire.any() else 1.0,
        largest_error=errors.max().item(),
        allowed_error=allowed_error(configuration, data, world),
        first_s=spent.max().item(),
    )
    if not checked.largest_error <= checked.allowed_error:
        raise JobError(
            f"{configuration} is wrong by {checked.largest_error:.3g} on {world} ranks, but at most "
            f"{checked.allowed_error:.3g} is promised; please report this"
        )
    _check_identical(bucket, configuration, gather)
    return checked


def allowed_error(configuration: Configuration, data: Data, world: int) -> float:
    """Return how far a sum may be from the exact one."""
    envelope = data.envelope(world, configuration.count)
    if configuration.algorithm == TORCH:
        return rounding_bound(envelope, world)
    return error_bound(configuration.plan, envelope, world)


def _check_identical(bucket: torch.Tensor, configuration: Configuration, gather: Gather) -> None:
    digest = hashlib.sha256(bucket.numpy().tobytes()).digest()
    rows = gather(torch.tensor(list(digest), dtype=torch.uint8))
    different = [rank for rank, row in enumerate(rows) if not torch.equal(row, rows[0])]
    if different:
        raise JobError(
            f"{configuration}: the bits of rank {different[0]} differ from those of rank 0, but all must "
            "have the same; please report this"
        )
