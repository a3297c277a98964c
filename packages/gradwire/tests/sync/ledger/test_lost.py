"""The shares of a norm that a ledger has counted: by bucket and parameter, resumed, and in sinks."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.errors import StateError
from gradwire.sync.layout import Layout
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import ErrorSums, LostBook, LostCounts
from gradwire.sync.ledger.sinks import JsonLines, TensorBoard
from support.ledgers import SMALL, Kept

LAYOUT = Layout(("w", "b"), (8, 2), ("all", "all"))
OTHER = Layout(("c",), (5,), ("all",))


def measured(layout: Layout, own: list[float], lost: list[float], is_sampled: bool = True) -> ErrorSums:
    sums = torch.tensor([own, lost], dtype=torch.float64)
    return ErrorSums.of(layout, sums, is_sampled=is_sampled)


def filled(ledger: Ledger) -> Ledger:
    """Three steps: two parameters in one bucket; another bucket; and one step that is not finite."""
    for own, lost in (([4.0, 1.0], [1.0, 0.0]), ([16.0, 0.0], [4.0, 2.0])):
        ledger.exchanged("first", SMALL, lost=measured(LAYOUT, own, lost))
        ledger.exchanged("second", SMALL, lost=measured(OTHER, [0.0], [0.0]))
        ledger.exchanged("third", SMALL)
        ledger.end_step()
    ledger.exchanged("first", SMALL, lost=measured(LAYOUT, [math.inf, 1.0], [1.0, 1.0]))
    ledger.exchanged("second", SMALL, lost=measured(OTHER, [1.0], [1.0]))
    ledger.end_step()
    return ledger


def test_shares_by_hand() -> None:
    summary = filled(Ledger(0)).summary()
    first = math.sqrt(1 / 5), math.sqrt(6 / 16)
    assert summary.lost.parameters == {
        "w": LostCounts(samples=2, share_sum=1.0, largest=0.5, last=0.5),
        "b": LostCounts(samples=1, share_sum=0.0, largest=0.0, last=0.0, without_own=1),
        "c": LostCounts(samples=2),
    }
    assert summary.lost.buckets["first"].mean == pytest.approx(sum(first) / 2)
    assert summary.lost.buckets["second"] == LostCounts(samples=2)
    assert summary.lost.total.last == pytest.approx(first[1])
    table = str(summary)
    assert re.search(r"^first +3 +1\.2kB +300B +4\.00 +53\.0% ", table, re.MULTILINE)
    assert re.search(r"^third +2 +800B +200B +4\.00 +- ", table, re.MULTILINE)
    assert (
        "the mean relative error of encoding was 52.98% over 2 steps; "
        "the largest: w 50.00% (at most 50.00%)\n" in table
    )


def test_exchanges_of_one_step_are_one_sample() -> None:
    ledger = Ledger(0)
    for _ in range(2):
        ledger.exchanged("first", SMALL, lost=measured(LAYOUT, [4.0, 1.0], [1.0, 0.0]))
    ledger.end_step()
    assert ledger.summary().lost.parameters["w"] == LostCounts(1, 0.5, 0.5, 0.5)


def test_the_open_step_counts_in_a_summary_and_once() -> None:
    ledger = Ledger(0)
    ledger.exchanged("first", SMALL, lost=measured(LAYOUT, [4.0, 1.0], [1.0, 0.0]))
    assert ledger.summary().lost.total.samples == 1
    ledger.end_step()
    assert ledger.summary().lost.total.samples == 1


def test_a_resumed_ledger_goes_on() -> None:
    ledger = filled(Ledger(1))
    state = json.loads(json.dumps(ledger.state_dict()))
    again = Ledger(1)
    again.load_state_dict(state)
    assert again.summary().lost == ledger.summary().lost
    assert again.state_dict() == ledger.state_dict()


def test_a_state_of_before_is_read() -> None:
    state = filled(Ledger(1)).state_dict()
    del state["lost"], state["crc32c"]
    ledger = Ledger(1)
    ledger.load_state_dict({**state, "version": 1})
    assert ledger.summary().total == filled(Ledger(1)).summary().total
    assert ledger.summary().lost == LostBook()


@pytest.mark.parametrize(
    "lost",
    [
        None,
        {},
        {"total": {}, "buckets": {}, "parameters": {}},
        {"total": {"samples": 1}, "buckets": {}, "parameters": {}},
        {**LostBook().state(), "parameters": {"w": 3}},
        {**LostBook().state(), "total": {**LostBook().state()["total"], "largest": math.nan}},
    ],
)
def test_a_state_whose_shares_do_not_fit_is_refused(lost: object) -> None:
    ledger = filled(Ledger(1))
    before = ledger.state_dict()
    with pytest.raises(StateError, match=r"(in|for) a ledger's state, got"):
        ledger.load_state_dict({**before, "lost": lost})
    assert ledger.state_dict() == before


def test_sinks_have_the_shares_of_measured_steps(tmp_path: Any) -> None:
    class Writer:
        def __init__(self) -> None:
            self.tags: dict[tuple[str, int], float] = {}

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.tags[tag, step] = value

    writer, kept = Writer(), Kept()
    ledger = filled(Ledger(0, [JsonLines(tmp_path / "log.jsonl"), TensorBoard(writer), kept]))
    ledger.exchanged("first", SMALL, lost=measured(LAYOUT, [4.0, 1.0], [1.0, 0.0], is_sampled=False))
    ledger.end_step()
    ledger.close()
    one, two, three, four = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert one["buckets"]["first"]["lost"] == pytest.approx(math.sqrt(1 / 5))
    assert one["lost"] == {"w": 0.5, "b": 0.0, "c": 0.0}, "the sync has sampled its step"
    assert two["lost"] == {"w": 0.5, "b": None, "c": 0.0}
    assert two["total"]["lost"] == two["buckets"]["first"]["lost"] == pytest.approx(math.sqrt(6 / 16))
    assert "lost" not in two["buckets"]["third"]
    assert "lost" not in three
    assert "lost" not in four, "the sync has not sampled its step, whatever number it has here"
    assert four["buckets"]["first"]["lost"] == one["buckets"]["first"]["lost"]
    assert "lost" not in three["total"]
    assert writer.tags["gradwire/lost", 1] == one["total"]["lost"]
    assert writer.tags["gradwire/second/lost", 2] == 0.0
    assert ("gradwire/lost", 3) not in writer.tags
    assert [bool(step.lost) for step in kept.steps] == [True, True, False, True]


def test_many_steps_are_counted_as_one_after_the_other() -> None:
    """The parameters of a bucket are counted 64 steps at once; a sum over the steps is the oracle."""
    rng, steps = np.random.default_rng(4), 150
    own, lost = rng.uniform(1, 9, (steps, 2)), rng.uniform(0, 4, (steps, 2))
    own[rng.random((steps, 2)) < 0.2] = 0.0
    own[-1, 0] = 0.0
    book = LostBook()
    for pair in zip(own, lost, strict=True):
        book.count([("first", measured(LAYOUT, *(each.tolist() for each in pair)))])
    for column, name in enumerate(LAYOUT.names):
        known = own[:, column] > 0
        shares = np.sqrt(lost[known, column] / own[known, column])
        counts = book.parameters[name]
        assert (counts.samples, counts.without_own) == (known.sum(), steps - known.sum())
        found = [counts.share_sum, counts.largest, counts.last]
        np.testing.assert_allclose(found, [shares.sum(), shares.max(), shares[-1]], rtol=1e-12)
    means = {name: counts.mean for name, counts in book.parameters.items()}
    assert [name for name, _ in book.worst(2)] == sorted(means, key=lambda name: -(means[name] or 0))
    assert [name for name, _ in book.worst(1)] == [max(means, key=lambda name: means[name] or 0)]


def test_a_copy_is_left_alone_by_later_counts() -> None:
    book = LostBook()
    book.count([("first", measured(LAYOUT, [4.0, 1.0], [1.0, 0.0]))])
    copied, before = book.copy(), book.copy().state()
    copied.count([("first", measured(LAYOUT, [1.0, 1.0], [1.0, 1.0]))])
    assert book.state() == before != copied.state()
