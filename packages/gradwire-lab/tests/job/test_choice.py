from __future__ import annotations

import pytest

from gradwire import Auto
from gradwire.autotune.settings import DEFAULT
from gradwire_lab.cli import demo, train
from gradwire_lab.job.options import JobOptions, Run, auto_within


@pytest.mark.parametrize(("steps", "most"), [(None, 150), (10_000, 150), (120, 30), (90, 22), (3, 10)])
def test_a_short_run_chooses_in_its_first_quarter(steps: int | None, most: int) -> None:
    found = auto_within(steps).config
    assert found.most_paced_steps == most
    assert (found.changed == "") == (most == DEFAULT.most_paced_steps), "nothing else is changed"


def test_attach_chooses_in_the_first_third_of_the_demo() -> None:
    parts = [demo.LENGTH, demo.SLOW_PARTS["attach"][2:]]
    for part in parts:
        options: JobOptions = train.read([*demo.MODEL, *part, "--runs", "attach:auto", "--workers", "4"])
        auto = options.plan_or_auto(Run("attach", "auto"))
        assert isinstance(auto, Auto)
        assert options.max_steps is not None
        latest = auto.config.warm_up_steps + 1 + auto.config.most_paced_steps
        assert latest <= options.max_steps / 3
