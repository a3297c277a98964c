"""The weight-delta experiment: its options, a small run, and its table."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire.tables import lines
from gradwire_lab.experiments import weight_delta
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.weight_delta import WeightDeltaOptions


def words(**given: object) -> argparse.Namespace:
    usual = {"text": None, "lrs": "3e-6,1e-3", "training": 2, "warm_up": 1, "steps": 2}
    return argparse.Namespace(**{**usual, **given})


def test_a_small_rate_moves_fewer_bits_than_a_large_one(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 60)
    options, rows = weight_delta.EXPERIMENT.read(words(text=str(text))), list[Row]()
    weight_delta.run(options, weight_delta.cells(options), [], rows.append)
    slow, fast = rows
    assert (slow["lr"], fast["lr"]) == (3e-6, 1e-3)
    assert 0 < slow["moved"] < fast["moved"] < 1
    assert 0 < slow["bits"] < fast["bits"] < 16
    assert slow["bits"] < slow["two_bit_bits"] < slow["full_bits"]
    printed = [line.split() for line in lines(*weight_delta.table(rows))]
    assert any(line[:1] == ["3e-06"] for line in printed)
    assert any(line[:1] == ["0.001"] for line in printed)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"lrs": "fast"}, "expected learning rates such as 3e-5,1e-4, got 'fast'"),
        ({"lrs": "2"}, "expected learning rates between 0 and 1, got"),
        ({"warm_up": 0}, "expected --warm-up of at least 1, got 0"),
        ({"text": "/nowhere"}, "expected a file for --text, got /nowhere; pass an existing file"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        weight_delta.EXPERIMENT.read(words(**given))


def test_it_asks_for_the_published_rates() -> None:
    assert [cell["lr"] for cell in weight_delta.cells(WeightDeltaOptions())] == [3e-6, 3e-5, 1e-4, 1e-3]
