"""Charts of the documentation: the same bytes again, every method's dot, and both colour schemes."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from gradwire.page import Picture
from gradwire_lab.experiments import charts
from gradwire_lab.experiments.charts import chart_file, gain_chart, losses_chart, speed_chart, steps_chart

GOAL = {"chance": 0.1, "known": 0.9, "origin": "a table"}
TIMES = {"alone": 10.0, "DDP": 40.0, "bf16 hook": 30.0, "fp8 on DDP": 20.0, "attach(model)": 25.0}


def rows(steps: int = 10, accuracy: float = 0.88) -> list[dict[str, Any]]:
    """Return trainings of three seeds, whose only evaluation meets the target loss."""
    cell = {"hosts": 4, "rate": "1gbit", "task": "gpt", "data": "digits", "plan": "", "goal": GOAL}
    return [
        {
            **cell,
            "seed": seed,
            "method": method,
            "step_s": time / 10,
            "accuracies": [accuracy],
            "curve": [[steps if method == "fp8 on DDP" else 10, time * (1 + seed / 10), 1.0]],
        }
        for seed in range(3)
        for method, time in TIMES.items()
    ]


def painted(picture: Picture) -> list[Any]:
    """Return the axes of a picture."""
    from matplotlib.figure import Figure

    drawn = Figure()
    picture.paint(drawn)
    return drawn.axes


def places(picture: Picture) -> dict[str, float]:
    """Return where the dot of each method is, by its label."""
    (axes,) = painted(picture)
    names = {
        tick: label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    }
    return {
        names[int(line.get_ydata()[0])]: float(line.get_xdata()[0])
        for line in axes.containers
        for line in line[:1]
    }


def test_a_dot_is_the_ratio_of_times() -> None:
    found = places(speed_chart({"GPT": rows()}))
    assert found == pytest.approx({"bf16 hook": 40 / 30, "fp8 on DDP": 2.0, "attach(model)": 1.6})


def test_a_dot_is_the_ratio_of_steps() -> None:
    found = places(steps_chart({"GPT": rows(steps=12)}))
    assert found == pytest.approx({"bf16 hook": 1.0, "fp8 on DDP": 1.2})


def test_who_misses_the_loss_has_words_instead_of_a_dot() -> None:
    missed = [{**row, "curve": [[10, 1.0, 2.0]]} if row["method"] == "bf16 hook" else row for row in rows()]
    picture = speed_chart({"GPT": missed})
    assert "bf16 hook" not in places(picture)
    assert "not reached by all seeds" in [text.get_text() for text in painted(picture)[0].texts]


def test_what_did_not_learn_is_not_drawn() -> None:
    assert places(speed_chart({"GPT": rows(), "CNN": rows(accuracy=0.1)})) == places(
        speed_chart({"GPT": rows()})
    )


def test_losses_are_those_of_the_first_seed() -> None:
    (axes,) = painted(losses_chart({"GPT": rows()}))
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines if line.get_label()[0] != "_"}
    assert lines == {name: [TIMES[name]] for name in ("DDP", "bf16 hook", "fp8 on DDP", "attach(model)")}


def test_gains_are_over_the_faster_one_of_ddp_and_its_bf16_hook() -> None:
    cell = {"part": "prediction", "ddp_s": 4.0}
    predicted = [
        {**cell, "model": model, "hook_s": hook_s, "hosts": hosts, "rate": rate, "step_s": hosts / 2}
        for model, hook_s in (("GPT-2", 3.0), ("1B", 5.0))
        for hosts in (2, 4)
        for rate in ("1gbit", "10gbit")
    ]
    first, second = painted(gain_chart({"": [{"part": "calibration"}, *predicted]}))
    assert [list(line.get_ydata()) for line in first.lines[:2]] == [[3.0, 3.0], [1.5, 1.5]]
    assert [list(line.get_ydata()) for line in second.lines[:2]] == [[4.0, 4.0], [2.0, 2.0]]
    assert second.get_ylabel() == "1B, times"


def test_a_file_has_the_same_bytes_again_and_both_schemes() -> None:
    first, second = (chart_file(speed_chart({"GPT": rows()})) for _ in range(2))
    assert first == second
    drawing = ElementTree.fromstring(first)
    assert drawing.tag.endswith("svg")
    light, dark = charts.schemes()
    assert light != dark
    assert f":root {{ {dark} }}" in first
    used = set(re.findall(r"var\(--([\w-]+)\)", first))
    assert {"paper", "ink"} <= used
    assert all(f"--{name}:" in scheme for name in used for scheme in (light, dark))
