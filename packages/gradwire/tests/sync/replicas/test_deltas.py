"""What changed in weights, against numpy's own rounding: any bits, any slices, and ends that hold others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs import TABLE, Bf16, Identity, parse
from gradwire.entropy.delta import WordName
from gradwire.errors import ExchangeError, PayloadError, SpecError, TensorError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.deltas import CHECKED_EVERY, LARGER, Deltas, another, over, weight_codec_of

Ranks = Callable[..., list[Any]]
HEADER = 28
ANY_BITS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200)


def held(masters: torch.Tensor, dtype: WordName) -> torch.Tensor:
    """Return what a receiver holds, as float32, by exact fractions of the bits."""
    if dtype == "fp32":
        return masters
    bits = masters.numpy().view(np.uint32).astype(np.uint64)
    kept, dropped = bits >> np.uint64(16), bits & np.uint64(0xFFFF)
    up = (dropped > 0x8000) | ((dropped == 0x8000) & (kept % np.uint64(2) == 1))
    words = np.where(np.isnan(masters.numpy()), kept | np.uint64(0x40), kept + up)
    return torch.from_numpy((words.astype(np.uint32) << 16).view(np.float32))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def walk(count: int, steps: int, far: float = 1e-5) -> list[torch.Tensor]:
    """Return weights that move a little from one to the next."""
    generator = torch.Generator().manual_seed(count)
    weights = [torch.randn(count, generator=generator)]
    for _ in range(steps - 1):
        weights.append(weights[-1] + far * torch.randn(count, generator=generator))
    return weights


class Pair:
    """A sender and a receiver, of a bucket in segments."""

    def __init__(self, dtype: WordName, ledger: Ledger | None = None) -> None:
        self.sender, self.receiver = Deltas(dtype, ledger), Deltas(dtype)

    def send(self, weights: torch.Tensor, segment: int = 1 << 20) -> tuple[torch.Tensor, int]:
        """Return what the receiver then has, and the bytes that took."""
        own, theirs, nbytes = weights.clone(), torch.full_like(weights, 7), 0
        sender, receiver = over(self.sender, own), over(self.receiver, theirs)
        for x, out in zip(torch.split(own, segment), torch.split(theirs, segment), strict=True):
            payload = sender.encode(x)
            assert payload.numel() <= sender.max_nbytes(x.numel())
            receiver.decode(payload, out)
            nbytes += payload.numel()
        assert same_bits(own, weights), "the sender's weights stay exact"
        assert torch.equal(self.sender.words.view(torch.uint8), self.receiver.words.view(torch.uint8))
        return theirs, nbytes


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@given(data=st.data())
def test_all_bits_come_back_from_every_base(dtype: WordName, data: st.DataObject) -> None:
    pair, first = Pair(dtype), data.draw(ANY_BITS)
    for _ in range(3):
        bits = [data.draw(st.integers(0, 2**32 - 1)) for _ in first]
        for each in (first, bits):
            weights = torch.from_numpy(np.array(each, np.uint32).view(np.float32))
            assert same_bits(pair.send(weights, segment=7)[0], held(weights, dtype))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_segment_has_versions_of_its_own(dtype: WordName) -> None:
    pair = Pair(dtype)
    for weights in walk(1000, 4):
        found, _ = pair.send(weights, segment=301)
        assert same_bits(found, held(weights, dtype))


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 0.1), ("fp32", 0.6)])
def test_weights_that_moved_a_little_take_a_share_of_their_bytes(dtype: WordName, most: float) -> None:
    pair, (first, *others) = Pair(dtype), walk(100_000, 3)
    word = 2 if dtype == "bf16" else 4
    assert pair.send(first)[1] < word * 100_000
    for weights in others:
        assert pair.send(weights)[1] < most * word * 100_000
    assert pair.send(others[-1])[1] < 200, "nothing has changed"


@pytest.mark.parametrize(("dtype", "word"), [("bf16", 2), ("fp32", 4)])
def test_no_payload_is_larger_than_a_copy_and_the_ledger_counts_copies(dtype: WordName, word: int) -> None:
    ledger, count = Ledger(0), 5000
    pair, generator = Pair(dtype, ledger), torch.Generator().manual_seed(0)
    for _ in range(3):  # bits without a pattern
        bits = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator).to(torch.int32)
        found, nbytes = pair.send(bits.view(torch.float32))
        assert same_bits(found, held(bits.view(torch.float32), dtype))
        assert nbytes <= HEADER + word * count
    bypass = ledger.summary().bypasses[LARGER]
    assert (bypass.count, bypass.nbytes) == (2, 2 * word * count), "the first copy is no bypass"
    pair.send(torch.rand(100))
    for _ in range(3):
        pair.send(torch.rand(100))
    assert ledger.summary().bypasses[LARGER] == bypass, "so few are not worth a word"
    ledger.close()


def test_a_hash_goes_along_now_and_then() -> None:
    pair, weights = Pair("fp32"), walk(100, CHECKED_EVERY + 1)
    sizes = [pair.send(each)[1] for each in weights[: CHECKED_EVERY - 1]]
    pair.receiver.words[3] += 1  # memory that went wrong
    with pytest.raises(PayloadError, match=r"expected the weights of version 100, .*; restart all ranks"):
        pair.send(weights[CHECKED_EVERY - 1])
    assert min(sizes) > HEADER


def test_a_delta_for_another_version_is_refused_and_changes_nothing() -> None:
    pair, weights = Pair("bf16"), walk(50, 4)
    pair.send(weights[0])
    pair.sender.over(weights[1]).encode(weights[1])  # lost
    kept = pair.receiver.words.clone()
    with pytest.raises(
        PayloadError, match=r"from version 1 or a full copy, got a delta from version 2; restart"
    ):
        pair.send(weights[2])
    assert torch.equal(pair.receiver.words, kept)
    pair.receiver = Deltas("bf16")
    with pytest.raises(
        PayloadError, match=r"expected a full copy, got a delta from version 3; restart all ranks"
    ):
        pair.send(weights[3])
    pair.sender = Deltas("bf16")  # both begin anew
    assert same_bits(pair.send(weights[3])[0], held(weights[3], "bf16"))


def test_a_bucket_of_another_length_begins_with_a_full_copy() -> None:
    pair = Pair("fp32")
    for count in (40, 40, 50, 0, 50):
        weights = torch.rand(count)
        assert same_bits(pair.send(weights, segment=16)[0], weights)


def test_words_that_all_ends_hold_need_no_full_copy() -> None:
    pair, (first, second) = Pair("fp32"), walk(10_000, 2, far=1e-8)
    for end in (pair.sender, pair.receiver):
        end.hold(first.clone(), 5)
    found, nbytes = pair.send(second)
    assert same_bits(found, second)
    assert nbytes < 10_000


def test_words_that_only_seem_the_same_are_found_by_the_first_delta() -> None:
    pair, (first, second) = Pair("fp32"), walk(10_000, 2, far=1e-8)
    pair.sender.hold(first.clone(), 0)
    pair.receiver.hold(first.clone().index_fill_(0, torch.tensor([7]), 9.0), 0)
    with pytest.raises(PayloadError, match="expected the weights of version 1"):
        pair.send(second)


def test_a_slice_of_nothing_is_an_empty_payload() -> None:
    codec, bucket = Deltas("fp32"), torch.empty(0)
    assert codec.over(bucket).encode(bucket).numel() == 0
    with pytest.raises(PayloadError, match="must be empty"):
        codec.decode(torch.zeros(3, dtype=torch.uint8), bucket)


def test_only_slices_of_its_bucket_are_taken() -> None:
    codec, bucket = Deltas("fp32"), torch.rand(100)
    codec.over(bucket)
    with pytest.raises(
        TensorError, match=r"expected a slice of its bucket of 100 weights, .* call over\(bucket\)"
    ):
        codec.encode(torch.rand(100_000))


def test_its_spec_names_what_receivers_hold() -> None:
    for spec in Deltas.EXAMPLES:
        codec = weight_codec_of(spec, "weights")
        assert isinstance(codec, Deltas)
        assert str(codec) == spec
        copy = another(codec, None)
        assert copy is not codec
        assert str(copy) == spec
    assert weight_codec_of(None, "weights") is None
    assert weight_codec_of("identity", "weights") == Identity() == another(Identity(), None)
    for spec in ("delta", "delta:", "delta:fp16", "delta:fp32,checked"):
        with pytest.raises(SpecError, match=r"^delta: expected the receivers' format, fp32 or bf16, got"):
            weight_codec_of(spec, "weights")
    with pytest.raises(SpecError, match=r"^weights: expected a codec, its spec or None, got 17; "):
        weight_codec_of(17, "weights")  # type: ignore[arg-type]


def test_it_is_no_codec_of_gradients() -> None:
    assert Deltas.wire_id not in {row.wire_id for row in TABLE}
    with pytest.raises(SpecError, match="unknown codec 'delta'"):
        parse("delta:fp32")


def test_its_bound_is_that_of_what_is_held() -> None:
    x = torch.tensor([1.0, -3.0])
    assert Deltas("fp32").bound(x) == 0
    assert Deltas("bf16").bound(x) == Bf16().bound(x) > 0


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "star", "tree", "butterfly"])
def test_all_ranks_hold_the_same_words(world: int, algorithm: str, run_exchanges: Ranks) -> None:
    steps = walk(9001, 3)

    def body(exchange: Exchange) -> list[torch.Tensor]:
        codec, found = Deltas("bf16"), []
        for weights in steps:
            bucket = weights.clone()  # the owner of each part has it; the others' values do not count
            exchange.broadcast(bucket, codec.over(bucket))
            assert same_bits(bucket, codec.words.float()), "owners go on with what others decode"
            found.append(codec.words.clone())
        return found

    plan = Plan(algorithm=algorithm, segment_nbytes=16384)
    for words in run_exchanges(world, body, plan):
        for mine, weights in zip(words, steps, strict=True):
            assert torch.equal(mine, weights.bfloat16())


@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "star", "tree", "butterfly"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_there_may_be_fewer_weights_than_ranks(count: int, algorithm: str, run_exchanges: Ranks) -> None:
    steps = walk(count, 3)

    def body(exchange: Exchange) -> None:
        codec = Deltas("fp32")
        for weights in steps:
            bucket = weights.clone()
            exchange.broadcast(bucket, codec.over(bucket))
            assert same_bits(bucket, weights)

    run_exchanges(4, body, Plan(algorithm=algorithm))


def test_ranks_that_hold_other_versions_fail_at_once(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> str:
        codec, bucket = Deltas("fp32"), torch.rand(100)
        exchange.broadcast(bucket, codec.over(bucket))
        if exchange.link.rank == 0:
            exchange.broadcast(bucket, codec.over(bucket))
            return ""
        codec = Deltas("fp32")  # as if this rank alone had begun anew
        with pytest.raises(ExchangeError) as caught:
            exchange.broadcast(bucket, codec.over(bucket))
        return str(caught.value)

    said = run_exchanges(2, body, Plan(algorithm="star"))
    assert "expected a full copy, got a delta from version 1" in said[1]


def test_codecs_that_differ_are_named(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> str:
        codec, bucket = Deltas("bf16" if exchange.link.rank == 0 else "fp32"), torch.rand(100)
        if exchange.link.rank == 0:
            exchange.broadcast(bucket, codec.over(bucket))
            return ""
        with pytest.raises(ExchangeError) as caught:
            exchange.broadcast(bucket, codec.over(bucket))
        return str(caught.value)

    assert "the parameters of the codec delta differ" in run_exchanges(2, body, Plan(algorithm="star"))[1]
