from __future__ import annotations

import math

import pytest

from gradwire.costs import ExchangeCost
from gradwire.sync.ledger.counts import StepRecord


def _accounting(encode_s: float, decode_s: float, total_s: float) -> ExchangeCost:
    return ExchangeCost(
        raw_nbytes=400,
        wire_nbytes=132,
        frames=1,
        encode_s=encode_s,
        decode_s=decode_s,
        wait_s=total_s - encode_s - decode_s,
    )


def test_a_wait_is_divided_as_the_exchange_was() -> None:
    record = StepRecord.of_wait(0.4, _accounting(0.1, 0.1, 0.8))
    assert record.codec_s == pytest.approx(0.4 * 0.25)
    assert record.exposed_s == pytest.approx(0.4 * 0.75)
    assert record.cost == _accounting(0.1, 0.1, 0.8)
    assert record.steps == 0
    assert math.isnan(record.loss)


def test_no_wait_exposes_nothing() -> None:
    record = StepRecord.of_wait(0.0, _accounting(0.1, 0.1, 0.8)).within(2.0, loss=1.5)
    assert (record.compute_s, record.codec_s, record.exposed_s) == (2.0, 0.0, 0.0)
    assert (record.loss, record.steps) == (1.5, 1)


def test_parts_add_up_to_the_wall_time() -> None:
    waits = StepRecord.of_wait(0.3, _accounting(0.1, 0.0, 0.3)) + StepRecord.of_wait(
        0.2, _accounting(0.0, 0.1, 0.4)
    )
    record = waits.within(1.5)
    assert record.step_s == pytest.approx(1.5)
    assert record.compute_s == pytest.approx(1.0)
    assert record.codec_s == pytest.approx(0.1 + 0.05)


def test_an_exchange_that_took_no_time_divides_nothing() -> None:
    record = StepRecord.of_wait(0.0, _accounting(0.0, 0.0, 0.0))
    assert (record.codec_s, record.exposed_s) == (0.0, 0.0)


def test_the_loss_of_a_sum_is_the_mean_over_steps() -> None:
    total = StepRecord()
    for loss in (1.0, 2.0, 6.0):
        total += StepRecord(loss=loss, compute_s=0.5, steps=1)
    total += StepRecord(
        exposed_s=0.25, cost=ExchangeCost(raw_nbytes=8, wire_nbytes=40)
    )  # a drain: no step, no loss
    assert total.loss == pytest.approx(3.0)
    assert (total.steps, total.compute_s, total.exposed_s) == (3, 1.5, 0.25)
    assert total.cost == ExchangeCost(raw_nbytes=8, wire_nbytes=40)
