"""Residuals of an exchange: what lossy encodings take away is kept, to the last bit that floats can hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gradwire import codecs, collectives
from gradwire.codecs import Identity, parse
from gradwire.collectives.frame_order import AHEAD, Do, frame_order
from gradwire.errors import ExchangeError, TensorError
from gradwire.exchange import Exchange
from gradwire.exchange.feedback import HostFeedback, Residual, commit_all
from gradwire.exchange.norms import Norms
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.cases import for_each
from support.faulty_link import Fault, FaultyLink
from support.sums import COMPOSED, SEGMENT_COUNT, bits, shares

RunRanks = Callable[..., list[Any]]
Rounds = list[tuple[torch.Tensor, torch.Tensor]]
SPECS = sorted(spec for row in codecs.TABLE for spec in row.codec.EXAMPLES)
WANTING = [spec for spec in SPECS if parse(spec).WANTS_RESIDUAL]
ALGORITHMS = (*sorted(collectives.TABLE), *COMPOSED)
EACH_ALGORITHM = pytest.mark.parametrize("algorithm", ALGORITHMS)


def exchanged(
    run_ranks: RunRanks, rounds: Sequence[Sequence[torch.Tensor]], plan: Plan, average: bool = False
) -> list[Rounds]:
    """All-reduce every round's shares with one residual a rank; return result and residual by rank, round."""

    def rank(link: Link) -> Rounds:
        exchange = Exchange(link, plan)
        residual = torch.zeros_like(rounds[0][0])
        found = []
        for xs in rounds:
            tensor = xs[link.rank].clone()
            exchange.all_reduce(tensor, average, residual)
            found.append((tensor, residual.clone()))
        return found

    return run_ranks(len(rounds[0]), rank)


def check_nothing_is_lost(rounds: Sequence[Sequence[torch.Tensor]], found: list[Rounds]) -> None:
    """Assert identical results, and that each round's exact sum is in its result and its residuals."""
    world = len(found)
    before = [torch.zeros_like(x) for x in rounds[0]]
    for number, xs in enumerate(rounds):
        results, residuals = ([each[number][part] for each in found] for part in (0, 1))
        for result in results:
            assert torch.equal(bits(result), bits(results[0]))
        wanted = torch.stack([*xs, *before]).double().sum(0)
        kept = torch.stack([results[0], *residuals]).double().sum(0)
        largest = max((part.abs().max().item() for part in (*xs, *before, *results, *residuals)), default=0.0)
        assert (kept - wanted).abs().max().item() <= 4 * world * world * 2.0**-24 * largest
        before = residuals


@EACH_ALGORITHM
@for_each("world", range(1, 10))
def test_a_rank_encodes_an_element_at_most_once(algorithm: str, world: int) -> None:
    """The residual has one place for every element, so a second loss would have none."""
    chosen = collectives.get(algorithm)
    n = 2 * chosen.chunks(world) * 10 + 3
    for half in (chosen.reduce, chosen.schedule):
        for rank in range(world):
            encoded = Counter(
                element
                for action in frame_order(half(rank, world), [n], chosen.chunks(world), 8, AHEAD)
                if action.do in (Do.SEND_PARTIAL, Do.PUBLISH)
                for element in range(action.segment.start, action.segment.stop)
            )
            assert set(encoded.values()) <= {1}
            if half == chosen.schedule and world > 1:
                assert len(encoded) == n, "every rank has something to encode of every element"


@EACH_ALGORITHM
@pytest.mark.parametrize("spec", [*WANTING, "errbound:2^-6", "bfp:7x16", "quantize:8"])
@for_each("world", [1, 2, 3, 5])
def test_results_and_residuals_hold_the_exact_sum(
    run_ranks: RunRanks, spec: str, algorithm: str, world: int
) -> None:
    rounds = [shares(world, 301, scale) for scale in (1.0, 0.1, 3.0)]
    found = exchanged(run_ranks, rounds, Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES))
    check_nothing_is_lost(rounds, found)
    if world > 1 and spec != "topk:1":
        assert all(residual.any() for each in found for _, residual in each), "nothing was lost at all"


@EACH_ALGORITHM
@pytest.mark.parametrize("world", [3, 4])
def test_chunks_of_many_segments_keep_everything_in_its_place(
    run_ranks: RunRanks, algorithm: str, world: int
) -> None:
    n = 2 * collectives.get(algorithm).chunks(world) * SEGMENT_COUNT + 77
    rounds = [shares(world, n)] * 2
    found = exchanged(run_ranks, rounds, Plan(parse("quantize:4"), algorithm, SEGMENT_UNIT_NBYTES))
    check_nothing_is_lost(rounds, found)


@EACH_ALGORITHM
def test_an_average_leaves_residuals_that_belong_to_the_sum(run_ranks: RunRanks, algorithm: str) -> None:
    world = 4  # so that dividing is exact
    rounds = [shares(world, 200)] * 3
    found = exchanged(run_ranks, rounds, Plan(parse("topk:0.1"), algorithm), average=True)
    check_nothing_is_lost(rounds, [[(world * mean, kept) for mean, kept in each] for each in found])


@pytest.mark.parametrize("spec", WANTING)
def test_a_residual_of_zero_changes_no_bit_of_the_result(run_ranks: RunRanks, spec: str) -> None:
    xs = shares(3, 500)

    def rank(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, Plan(parse(spec))).all_reduce(tensor, average=False)
        return tensor

    without = run_ranks(3, rank)
    with_residual = exchanged(run_ranks, [xs], Plan(parse(spec)))
    for plain, ((kept, _),) in zip(without, with_residual, strict=True):
        assert torch.equal(bits(plain), bits(kept))


@EACH_ALGORITHM
def test_the_mean_of_many_rounds_becomes_the_gradient(run_ranks: RunRanks, algorithm: str) -> None:
    """A tenth of the values travels each time; without feedback the others would never arrive."""
    world, times = 3, 200
    xs = shares(world, 120, 1.0)
    exact = torch.stack(xs).double().mean(0)
    found = exchanged(run_ranks, [xs] * times, Plan(parse("topk:0.1"), algorithm), average=True)

    def error(rounds: int) -> float:
        mean = torch.stack([result for result, _ in found[0][:rounds]]).double().mean(0)
        return (mean - exact).abs().max().item()

    small = exact.abs() < 0.2  # some, and never sent alone
    first, _ = found[0][0]
    assert (first[small] == 0).any()
    assert error(times) < 0.1 < exact.abs().max().item() / 10 < error(1)
    assert error(times) < error(times // 4) / 2


def test_feedback_stays_bounded_where_errors_are_smaller_than_values_and_terngrad_is_not_so(
    run_ranks: RunRanks,
) -> None:
    """A coin of terngrad's may err by the largest value, which makes the next largest value larger."""
    rounds = [shares(2, 4000, 1.0)] * 40

    def growth(spec: str) -> float:
        found = exchanged(run_ranks, rounds, Plan(parse(spec)))
        first, last = (found[0][number][1].abs().max().item() for number in (0, -1))
        return last / first

    assert growth("quantize:4") < 2
    assert growth("terngrad") > 4


@pytest.mark.parametrize("algorithm", ["star", "ring"])
def test_reduce_keeps_what_it_loses_too(run_ranks: RunRanks, algorithm: str) -> None:
    world, n = 4, 400
    xs = shares(world, n, 1.0)
    old = shares(world, n + 1, 0.3)

    def rank(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        tensor, residual = xs[link.rank].clone(), old[link.rank][:n].clone()
        Exchange(link, Plan(parse("topk:0.1"), algorithm)).reduce(tensor, residual)
        return tensor, residual

    found = run_ranks(world, rank)
    owner = collectives.get(algorithm).owner
    chunks = collectives.get(algorithm).chunks(world)
    wanted = sum(x.double() + r[:n].double() for x, r in zip(xs, old, strict=True))
    assert isinstance(wanted, torch.Tensor)
    for chunk in range(chunks):
        part = slice(n * chunk // chunks, n * (chunk + 1) // chunks)
        root = owner(chunk, world)
        kept = found[root][0][part].double() + sum(residual[part].double() for _, residual in found)
        assert torch.allclose(kept, wanted[part], rtol=0, atol=1e-5)
        assert not found[root][1][part].any(), "the owner has encoded nothing of its chunk"


@pytest.mark.parametrize("spec", ["identity", "lossless"])
def test_an_exact_codec_pays_the_old_residual_out_and_keeps_none(
    run_ranks: RunRanks, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    kind = type(parse(spec))

    def counted(decode: Callable[..., Any]) -> Callable[..., Any]:
        def count(self: Any, payload: torch.Tensor, out: torch.Tensor, *divisor: int) -> Any:
            decoded.append(out.numel())
            return decode(self, payload, out, *divisor)

        return count

    for name in ("decode", "decode_finished"):
        monkeypatch.setattr(kind, name, counted(getattr(kind, name)))

    def rank(link: Link) -> tuple[float, float]:
        tensor, residual = torch.ones(8), torch.full((8,), 0.5)
        Exchange(link, Plan(parse(spec), "star")).all_reduce(tensor, average=False, residual=residual)
        return tensor.sum().item(), residual.abs().sum().item()

    assert run_ranks(3, rank) == [(8 * 3 * 1.5, 0.0)] * 3
    assert decoded == [8, 8], "the two ranks that stored, and nobody else"


def test_one_rank_alone_loses_nothing(run_ranks: RunRanks) -> None:
    ((first, second),) = exchanged(run_ranks, [shares(1, 50), shares(1, 50)], Plan(parse("topk:0.1")))
    assert torch.equal(first[0], shares(1, 50)[0])
    assert not first[1].any()
    assert not second[1].any()


@pytest.mark.parametrize("spec", SPECS)
@for_each("algorithm", ["ring", "tree"])
def test_what_is_not_finite_passes_once_and_the_residual_stays(
    run_ranks: RunRanks, spec: str, algorithm: str
) -> None:
    world = 3
    sound, spoilt = shares(world, 50), shares(world, 50)
    spoilt[1][17] = math.nan
    spoilt[2][33] = math.inf
    spoilt[0][41], spoilt[1][41] = math.inf, -math.inf
    with_it = exchanged(run_ranks, [sound, spoilt, sound], Plan(parse(spec), algorithm))
    without = exchanged(run_ranks, [sound, sound], Plan(parse(spec), algorithm))
    for ((_, before), (result, kept), (again, after)), (_, (second, left)) in zip(
        with_it, without, strict=True
    ):
        assert not result[[17, 33, 41]].isfinite().any()
        assert torch.equal(bits(kept), bits(before))
        if spec != "terngrad":  # whose coins go on
            assert torch.equal(bits(again), bits(second))
            assert torch.equal(bits(after), bits(left))


def test_a_residual_that_is_not_finite_already_heals(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        tensor, residual = torch.ones(20), torch.full((20,), math.nan if link.rank else 0.0)
        Exchange(link, Plan(parse("topk:0.5"))).all_reduce(tensor, residual=residual)
        return tensor, residual

    (result, lost_beside_it), (other, lost) = run_ranks(2, rank)
    assert not result.isfinite().any()
    assert not other.isfinite().any()
    assert lost_beside_it.isfinite().all()
    assert not lost.any()


@EACH_ALGORITHM
@pytest.mark.parametrize("step", [0, 1])
def test_a_failure_leaves_the_residual_as_it_was(run_ranks: RunRanks, algorithm: str, step: int) -> None:
    world = 4
    n = world * 3 * SEGMENT_COUNT
    residuals = shares(world, n)
    before = [residual.clone() for residual in residuals]

    def rank(link: Link) -> None:
        plan = Plan(parse("quantize:4"), algorithm, SEGMENT_UNIT_NBYTES)
        Exchange(link, plan).all_reduce(torch.ones(n), residual=residuals[link.rank])

    links = [FaultyLink(link, [Fault("corrupt", rank=1, step=step, bit=-1)]) for link in loopback(world, 1.0)]
    errors = run_ranks(world, rank, links=links, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    for residual, old in zip(residuals, before, strict=True):
        assert torch.equal(bits(residual), bits(old))


MEMORY = torch.zeros(9)


@pytest.mark.parametrize(
    ("residual", "reason"),
    [
        pytest.param(torch.ones(8, dtype=torch.float64), "a 1-D contiguous .* for residual", id="dtype"),
        pytest.param(torch.ones(2, 4), "a 1-D contiguous .* for residual", id="shape"),
        pytest.param([0.0] * 8, "expected a torch tensor for residual, got a list", id="list"),
        pytest.param(torch.ones(7), "expected a residual of 8 elements, like the tensor, got 7", id="length"),
        pytest.param(MEMORY[:8], "expected a residual in its own memory", id="same memory"),
        pytest.param(MEMORY[1:], "expected a residual in its own memory", id="overlap"),
    ],
)
def test_a_wrong_residual_is_refused_and_the_exchange_goes_on(
    run_ranks: RunRanks, residual: Any, reason: str
) -> None:
    def rank(link: Link) -> float:
        exchange = Exchange(link, Plan(parse("topk:1")))
        tensor = MEMORY[:8]
        for refusing in (exchange.all_reduce, exchange.reduce):
            with pytest.raises(TensorError, match=reason):
                refusing(tensor, residual=residual)
        right = torch.ones(4)
        exchange.all_reduce(right, average=False, residual=torch.ones(4))
        return right.sum().item()

    assert run_ranks(2, rank) == [16.0, 16.0]
    assert not MEMORY.any()


def test_an_empty_bucket_has_an_empty_residual(run_ranks: RunRanks) -> None:
    found = exchanged(run_ranks, [[torch.ones(0)] * 3], Plan(parse("topk:0.1")))
    assert [(result.numel(), residual.numel()) for ((result, residual),) in found] == [(0, 0)] * 3


def test_buckets_of_different_lengths_do_not_mix_up_their_residuals(run_ranks: RunRanks) -> None:
    lengths, world = [50, 9, 200, 9], 3

    def rank(link: Link) -> list[Rounds]:
        exchange = Exchange(link, Plan(parse("topk:0.1")))
        residuals = [torch.zeros(n) for n in lengths]
        found: list[Rounds] = [[] for _ in lengths]
        for _ in range(2):
            for each, n, residual in zip(found, lengths, residuals, strict=True):
                tensor = shares(world, n)[link.rank].clone()
                exchange.all_reduce(tensor, average=False, residual=residual)
                each.append((tensor, residual.clone()))
        return found

    ranks = run_ranks(world, rank)
    for number, n in enumerate(lengths):
        check_nothing_is_lost([shares(world, n)] * 2, [found[number] for found in ranks])


def test_a_residual_that_requires_gradients_is_kept_all_the_same(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> float:
        residual = torch.ones(4, requires_grad=True)
        exchange = Exchange(link, Plan(Identity()))
        exchange.all_reduce(torch.ones(4), residual=residual)
        return residual.abs().sum().item()

    assert run_ranks(2, rank) == [0.0, 0.0]


def test_feedback_that_is_used_again_begins_anew() -> None:
    """A step whose values were not finite keeps the old residual; the next one is like any other."""
    codec, residual = parse("topk:0.25"), torch.zeros(4)
    feedback = HostFeedback(codec, Norms([0, 4]), Residual([residual], torch.empty(4)))
    for values, kept in (
        ([1.0, 2.0, 3.0, 8.0], [1.0, 2.0, 3.0, 0.0]),
        ([0.0, 0.0, 0.0, math.inf], [1.0, 2.0, 3.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
    ):
        tensor = torch.tensor(values)
        feedback.begin(tensor)
        feedback.sent(codec.encode(tensor), tensor, 0)
        commit_all([feedback])
        assert residual.tolist() == kept
