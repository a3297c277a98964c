"""Payloads of Python codecs, made for an engine that calls by the number of an action."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gradwire import collectives
from gradwire.codecs import Codec, parse
from gradwire.collectives.frame_order import AHEAD, Action, frame_order
from gradwire.errors import PayloadError
from gradwire.exchange.feedback import ErrorFeedback
from gradwire.exchange.frames import Framer
from gradwire.exchange.in_python import PythonPayloads
from gradwire.exchange.walk import RunPart
from gradwire.plan import Plan

COUNT, SEGMENT = 3001, 1024


@dataclass
class Rank:
    """One rank of a ring of two, whose caller carries the payloads."""

    actions: list[Action]
    values: torch.Tensor
    payloads: PythonPayloads

    @classmethod
    def of(cls, number: int, codec: Codec) -> Rank:
        ring = collectives.get("ring")
        values = torch.randn(COUNT, generator=torch.Generator().manual_seed(number))
        actions = frame_order(ring.schedule(number, 2), [COUNT], ring.chunks(2), SEGMENT, AHEAD)
        part = RunPart(values, Framer(codec, SEGMENT), ErrorFeedback(codec))
        return cls(actions, values, PythonPayloads([part], actions, 2))


def encode(rank: Rank, number: int, codec: Codec) -> bytes:
    segment = rank.actions[number].segment
    memory = memoryview(bytearray(codec.max_nbytes(segment.stop - segment.start)))
    payload = memory[: rank.payloads.encode(number, memory)]
    rank.payloads.sent(number, payload)
    return bytes(payload)


def exchange(one: Rank, other: Rank, codec: Codec) -> None:
    """Run both schedules, which have the same order of sends and receives."""
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    at = [0, 0]
    while at != [len(one.actions), len(other.actions)]:
        for number, rank in enumerate((one, other)):
            if at[number] == len(rank.actions):
                continue
            action = rank.actions[at[number]]
            if not action.receives:
                sent[1 - number].append(encode(rank, at[number], codec))
            elif sent[number]:
                rank.payloads.take(at[number], memoryview(bytearray(sent[number].pop(0))))
            else:
                continue
            at[number] += 1


@pytest.mark.parametrize("spec", ["lossless", "topk:1"])
def test_ranks_have_the_average_if_nothing_is_lost(spec: str) -> None:
    codec = parse(spec)
    one, other = Rank.of(0, codec), Rank.of(1, codec)
    average = (one.values + other.values) / 2
    exchange(one, other, codec)
    assert one.values.equal(average)
    assert other.values.equal(average)
    assert one.payloads.action is None
    assert not one.payloads.scales


def test_ranks_are_alike_and_say_their_scales() -> None:
    codec = Plan(parse("errbound:2^-10"), scale="auto").encoding
    one, other = Rank.of(0, codec), Rank.of(1, codec)
    exchange(one, other, codec)
    assert one.values.equal(other.values)
    assert one.payloads.scales
    assert other.payloads.scales


def test_a_malformed_payload_is_named_by_its_action() -> None:
    rank = Rank.of(0, parse("lossless"))
    number = next(i for i, action in enumerate(rank.actions) if action.receives)
    before = rank.values.clone()
    with pytest.raises(PayloadError, match="expected a lossless encoding"):
        rank.payloads.take(number, memoryview(bytearray(5)))
    assert rank.payloads.action == number
    assert rank.values.equal(before)
