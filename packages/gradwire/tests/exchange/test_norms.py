"""What a walk says that it lost, against a ring by hand and against the residuals, which hold it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradwire import collectives
from gradwire.codecs import Codec, Identity, parse
from gradwire.errors import TensorError
from gradwire.exchange import Exchange, Norms
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.sums import COMPOSED, SEGMENT_COUNT, bits, shares

RunRanks = Callable[..., list[Any]]
Array = npt.NDArray[np.float64]
ALGORITHMS = (*sorted(collectives.TABLE), *COMPOSED)


def squares(x: torch.Tensor, borders: list[int]) -> list[float]:
    values = x.double().square().numpy()
    return [math.fsum(values[a:b].tolist()) for a, b in pairwise(borders)]


def borders_of(n: int) -> list[int]:
    """Parameters smaller than a segment, larger than one, and an empty one."""
    return [0, 3, 3, n // 5, n // 5 + 1, n - 40, n]


def measured(
    run_ranks: RunRanks,
    xs: list[torch.Tensor],
    plan: Plan,
    residuals: list[torch.Tensor] | None = None,
    half: str = "all_reduce",
) -> list[tuple[torch.Tensor, list[float], list[float]]]:
    borders = borders_of(xs[0].numel())

    def rank(link: Link) -> tuple[torch.Tensor, list[float], list[float]]:
        exchange, norms = Exchange(link, plan), Norms(borders)
        for _ in range(2):  # the second time, norms begin anew
            tensor = xs[link.rank].clone()
            residual = None if residuals is None else residuals[link.rank].clone()
            if half == "reduce":
                exchange.reduce(tensor, residual, norms)
            else:
                exchange.all_reduce(tensor, False, residual, norms)
        return tensor, norms.own.tolist(), norms.lost.tolist()

    return run_ranks(len(xs), rank)


def lost_by_residual(
    run_ranks: RunRanks, xs: list[torch.Tensor], plan: Plan, residuals: list[torch.Tensor], half: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    def rank(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        exchange = Exchange(link, plan)
        tensor, residual = xs[link.rank].clone(), residuals[link.rank].clone()
        if half == "reduce":
            exchange.reduce(tensor, residual)
        else:
            exchange.all_reduce(tensor, False, residual)
        return tensor, residual

    return run_ranks(len(xs), rank)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("spec", ["quantize:4", "errbound:2^-6"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_what_is_lost_is_what_a_residual_would_hold(
    run_ranks: RunRanks, spec: str, algorithm: str, world: int
) -> None:
    n = 2 * collectives.get(algorithm).chunks(world) * SEGMENT_COUNT + 77
    xs, plan = shares(world, n), Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)
    nothing, something = [torch.zeros(n)] * world, shares(world, n + 1)
    old = [each[:n].contiguous() for each in something]
    borders = borders_of(n)
    for residuals, half in ((None, "all_reduce"), (old, "all_reduce"), (None, "reduce")):
        found = measured(run_ranks, xs, plan, residuals, half)
        wanted = lost_by_residual(run_ranks, xs, plan, nothing if residuals is None else residuals, half)
        for rank, ((result, own, lost), (same, kept)) in enumerate(zip(found, wanted, strict=True)):
            assert torch.equal(bits(result), bits(same)), "measuring changes no bit"
            assert own == pytest.approx(squares(xs[rank], borders), rel=1e-12)
            assert lost == pytest.approx(squares(kept, borders), rel=1e-12)
            if half == "all_reduce" and world > 1:
                assert sum(lost) > 0


def ring_by_hand(xs: list[torch.Tensor], codec: Codec) -> list[Array]:
    """Return what every rank's encodings lose, element by element, in a ring whose chunks are one segment.

    Rank r sends chunk r, adds what comes from its left to the next chunk and sends that; who has the whole
    sum of a chunk encodes it once more, for all others.
    """
    world, n = len(xs), xs[0].numel()
    size = -(-n // world)
    sums = [x.clone() for x in xs]
    lost = [np.zeros(n) for _ in xs]

    def encoded(rank: int, chunk: int) -> torch.Tensor:
        where = slice(chunk * size, min((chunk + 1) * size, n))
        part = sums[rank][where].clone()
        decoded = torch.empty_like(part)
        codec.decode(codec.encode(part), decoded)
        lost[rank][where] = (part.double() - decoded.double()).numpy()
        return decoded

    for step in range(world - 1):
        sent = {rank: encoded(rank, (rank - step) % world) for rank in range(world)}
        for rank, values in sent.items():
            chunk = (rank - step) % world
            sums[(rank + 1) % world][chunk * size : chunk * size + values.numel()] += values
    for rank in range(world):
        encoded(rank, (rank + 1) % world)
    return lost


@pytest.mark.parametrize("world", [2, 3, 4, 5])
@pytest.mark.parametrize("spec", ["quantize:4", "errbound:2^-6", "bf16"])
def test_a_ring_by_hand(run_ranks: RunRanks, spec: str, world: int) -> None:
    n = 60 * world
    xs, borders = shares(world, n), borders_of(n)
    lost = ring_by_hand(xs, parse(spec))
    for rank, (_, own, found) in enumerate(measured(run_ranks, xs, Plan(parse(spec)))):
        by_hand = [math.fsum(np.square(lost[rank][a:b]).tolist()) for a, b in pairwise(borders)]
        assert found == pytest.approx(by_hand, rel=1e-6)
        assert own == pytest.approx(squares(xs[rank], borders), rel=1e-12)


@pytest.mark.parametrize("spec", ["identity", "lossless"])
def test_an_exact_codec_loses_nothing_and_decodes_nothing(
    run_ranks: RunRanks, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    xs = shares(1, 100) * 2
    codec, decoded = parse(spec), list[int]()
    kind = type(codec)

    def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
        def decode(self: Codec, payload: torch.Tensor, out: torch.Tensor, *divisor: int) -> Any:
            decoded.append(out.numel())
            return plain(self, payload, out, *divisor)

        return decode

    for name in ("decode", "decode_finished"):
        monkeypatch.setattr(kind, name, counted(getattr(kind, name)))
    for _, own, lost in measured(run_ranks, xs, Plan(codec)):
        assert set(own) | set(lost) == {0.0}
    assert len(decoded) == 2 * 2, "what comes in; nothing that goes out"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_shows(run_ranks: RunRanks, value: float) -> None:
    xs = shares(2, 100)
    xs[1][50] = value
    (_, own, _), (_, others, _) = measured(run_ranks, xs, Plan(parse("bf16")))
    assert all(map(math.isfinite, own))
    assert not all(map(math.isfinite, others))


@pytest.mark.parametrize("borders", [[], [1, 4], [0, 3, 2, 4]])
def test_borders_that_are_none_are_refused(borders: list[int]) -> None:
    with pytest.raises(TensorError, match="ascending borders that start at 0, got"):
        Norms(borders)


def test_borders_of_another_bucket_are_refused() -> None:
    (link,) = loopback(1)
    with pytest.raises(TensorError, match="for 4 elements, the tensor's length, got norms for 5"):
        Exchange(link, Plan()).all_reduce(torch.ones(4), norms=Norms([0, 5]))


class Negated(Identity):
    """A codec of another package, which negates values in Python around the compiled format."""

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return super()._encode(-x, out)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        super()._decode(payload, out)
        out.neg_()


def test_a_codec_that_decodes_in_python_is_not_decoded_by_its_format() -> None:
    sums = torch.tensor([1.0, -2.0, 3.0])
    codec, received, adopted = Negated(), torch.empty(3), sums.clone()
    payload = codec.encode(sums)
    assert codec.decode_finished(payload, received, 2)
    assert Norms([0, 3]).lose(codec, payload, adopted, 0, None, divisor=2) == (0.0, True)
    assert received.tolist() == adopted.tolist() == [0.5, -1.0, 1.5]
