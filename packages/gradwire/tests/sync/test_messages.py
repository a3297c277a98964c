from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.errors import ExchangeError
from gradwire.fields import anything, keyed, real, rows, text, whole
from gradwire.sync.messages import MOST_NBYTES, Record, broadcast, gather, mean
from support.ranks import run_ranks

RECORD = Record(7, "a test's record", keyed(rows(anything)))
VALUES: dict[str, list[Any]] = {
    "texts": ["", "a plan, and a word in Greek: λόγος " * 40, "x" * 31, "x" * 32],
    "numbers": [0, 1, 127, 128, -1, 1 << 62, -(1 << 63), 0.1, -0.0, math.inf, 5e-324],
    "others": [None, True, False, [], {}, [[1], [2]] * 20, {str(each): each for each in range(20)}],
}
HEADER = 12


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_learns_all_rows_and_the_value_of_rank_0(world: int) -> None:
    def talk(link: Link) -> tuple[list[list[float]], Any, Any]:
        exchange = Exchange(link, Plan.of("fp8", algorithm="star"))
        found = gather(exchange, [link.rank, 1 / (1 + link.rank), 1e30], 5.0)
        own = VALUES if link.rank == 0 else {"a rank's own": ["which no rank receives"]}
        return found, broadcast(exchange, RECORD, own, 5.0), broadcast(exchange, RECORD, {}, 5.0)

    results = run_ranks(world, talk)
    assert all(result == results[0] for result in results)
    gathered, heard, nothing = results[0]
    assert [row[0] for row in gathered] == list(range(world))
    assert [row[1] for row in gathered] == pytest.approx([1 / (1 + rank) for rank in range(world)], rel=1e-7)
    assert heard == {name: tuple(each) for name, each in VALUES.items()}
    assert [type(each) for each in heard["numbers"]] == [type(each) for each in VALUES["numbers"]]
    assert nothing == {}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_learns_the_mean(world: int) -> None:
    def average(link: Link) -> list[float]:
        exchange, values = Exchange(link, Plan.of("quantize:4")), torch.arange(5.0) * link.rank
        mean(exchange, values, 5.0)
        mean(exchange, torch.zeros(0), 5.0)
        return values.tolist()

    means = run_ranks(world, average)
    assert means == [pytest.approx([i * (world - 1) / 2 for i in range(5)], rel=1e-6)] * world
    assert means == [means[0]] * world, "the same bits"


def test_a_rank_that_expects_another_record_refuses_it() -> None:
    def talk(link: Link) -> object:
        exchange = Exchange(link, Plan())
        return broadcast(exchange, RECORD if link.rank == 0 else replace(RECORD, number=8), {}, 5.0)

    reason = r"^a test's record from rank 0: expected a record of type 8, got 7; use the same version"
    with pytest.raises(ExchangeError, match=reason):
        run_ranks(2, talk)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "expected JSON for a test's record from rank 0, got "),
        (b"{} {}", "got invalid JSON: "),
        (b'{"a": [1', "got invalid JSON: "),
        (b"[" * 100_000, "got invalid JSON: "),
        (b"\xff{}", "expected a record in UTF-8, got "),
        (b"[]", "expected "),
        (b'{"a": 1}', "expected "),
    ],
)
def test_a_damaged_body_is_an_error_in_one_sentence(body: bytes, reason: str) -> None:
    with pytest.raises(ExchangeError, match=reason) as caught:
        RECORD.read(body)
    assert str(caught.value).endswith("use the same version of gradwire on all ranks")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<4sHHI", b"JSON", 1, 7, 9), "that starts with b'GRDR', got b'JSON'"),
        (struct.pack("<4sHHI", b"GRDR", 2, 7, 9), "of version 1, got 2"),
        (struct.pack("<4sHHI", b"GRDR", 1, 6, 9), "of type 7, got 6"),
        (struct.pack("<4sHHI", b"GRDR", 1, 7, 0), f"of 1 to {MOST_NBYTES} bytes, got 0"),
        (struct.pack("<4sHHI", b"GRDR", 1, 7, MOST_NBYTES + 1), f"bytes, got {MOST_NBYTES + 1}"),
    ],
)
def test_a_header_of_something_else_is_an_error(head: bytes, reason: str) -> None:
    with pytest.raises(ExchangeError, match=rf"{reason}; use the same version of gradwire on all ranks$"):
        RECORD.open(head)
    assert RECORD.pack({})[:HEADER] == struct.pack("<4sHHI", b"GRDR", 1, 7, 2)


def test_damage_anywhere_is_the_same_type_of_error() -> None:
    typed = Record(7, "a test's record", rows(keyed(text)))
    counted = Record(7, "a test's record", keyed(rows(real(0.0))))
    body = RECORD.pack(VALUES)[HEADER:]
    damaged = [body[:end] for end in range(0, len(body), 7)]
    damaged += [
        body[:at] + bytes([body[at] ^ bit]) + body[at + 1 :] for at in range(200) for bit in (1, 64, 128)
    ]
    refused: list[str] = []
    for each in damaged:
        for record in (RECORD, typed, counted, Record(7, "a test's record", whole())):
            try:
                record.read(each)
            except ExchangeError as error:
                refused.append(str(error))
    assert len(refused) > 3 * len(damaged), "other kinds refuse all of them"
    assert all(len(each.splitlines()) == 1 for each in refused)
