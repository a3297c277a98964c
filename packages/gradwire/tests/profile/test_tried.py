"""What a trial measured: what is said of its steps, and its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.profile.tried import COUNTED, Tried
from gradwire.tables import lines

TRIED = Tried("fp8 over ring", 11, (0.2,) * 10, (0.1,) * COUNTED, 64e6, 8e6)


def test_quiet_steps_give_a_range_and_their_bytes() -> None:
    assert TRIED.speedup == 2
    assert TRIED.verdict() == (
        "A step was measured to be 2 to 2 times as fast with gradwire; gradwire chose fp8 over ring after 11 "
        "attached steps."
    )
    scattered = replace(TRIED, attached_s=tuple(0.1 + 0.0002 * step for step in range(COUNTED)))
    assert 0 < scattered.spread < 0.15
    low, high = (float(word) for word in scattered.verdict().split(" be ")[1].split()[:3:2])
    assert low < scattered.speedup < high
    printed = [line.split() for line in lines(*TRIED.report())]
    assert ["plain", "DDP", "10", "200", "0.0%", "64MB"] in printed
    assert ["attached", "30", "100", "0.0%", "8MB"] in printed


def test_a_slower_step_is_no_gain() -> None:
    slower = replace(TRIED, attached_s=(0.4,) * COUNTED).verdict()
    assert "0.5 to 0.5 times as fast" in slower
    assert slower.endswith("Don't attach gradwire on this network.")


def test_steps_that_scatter_by_more_than_15_percent_are_too_noisy_to_say() -> None:
    noisy = replace(TRIED, plain_s=(0.1, 0.2, 0.3, 0.4, 0.5))
    assert noisy.spread > 0.15
    assert noisy.verdict().startswith("Steps are too noisy to measure the gain: they scatter by ")
    assert "times as fast" not in noisy.verdict()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    TRIED.save(tmp_path / "tried.json")
    assert Tried.load(tmp_path / "tried.json") == TRIED
    (tmp_path / "tried.json").write_text("{}")
    with pytest.raises(JobError, match="run 'gradwire profile' again"):
        Tried.load(tmp_path / "tried.json")
