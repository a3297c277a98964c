"""Tables of training speeds: intervals over seeds, ties called ties, and models that did not learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from gradwire.tables import Table, lines
from gradwire_lab.experiments.speeds import (
    ATTACHED,
    COLUMNS,
    COMPARISONS,
    HOOK,
    JUDGE,
    PIPELINED,
    POWER_SGD,
    ratio,
    summary,
    table,
    trained,
)

GOAL = {"chance": 0.1, "known": 0.9, "origin": "a table"}
SEEDS = (0, 1, 2)


def runs(method: str, times: Sequence[float], loss: float | None = 1.0, **more: object) -> list[Any]:
    """Return one training for each seed, of ten steps, which end at a loss."""
    cell = {"hosts": 2, "rate": "1gbit", "task": "gpt", "data": "digits", "method": method}
    common = {**cell, "plan": "", "local_s": 0.0, "blocks": [], "goal": GOAL, "accuracies": [0.2, 0.88]}
    return [
        {**common, "seed": seed, "step_s": time / 10, "curve": [(10, time, loss)], **more}
        for seed, time in zip(SEEDS, times, strict=False)
    ]


DDP = runs(JUDGE, [40.0, 42.0, 41.0])
FAST = runs(ATTACHED, [20.0, 21.5, 20.4], plan="fp8 ring 1024K")
SLOW = runs(HOOK, [30.0, 31.0, 30.4])
ALONE = runs("alone", [10.0, 10.5, 10.25])


def tables(rows: Sequence[Any]) -> list[list[Sequence[str]]]:
    return [list(part.rows) for part in table(rows) if isinstance(part, Table)]


def texts(rows: Sequence[Any]) -> str:
    return "\n".join(part for part in table(rows) if isinstance(part, str))


def test_ratios_are_paired_by_seed_and_their_interval_is_students() -> None:
    own, others = {0: 1.0, 1: 10.0, 2: 100.0}, {0: 2.0, 1: 20.0, 2: 200.0}
    paired = ratio(own, others)
    assert paired is not None
    assert [paired.least, paired.mean, paired.most] == pytest.approx([2, 2, 2]), (
        "seeds that differ cancel out"
    )
    found = ratio({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 2.0, 2: 4.0})
    assert found is not None
    around = 4.30 * math.log(2) / math.sqrt(3)  # t of two degrees of freedom, deviation, three seeds
    assert found.mean == pytest.approx(2.0)
    assert found.least == pytest.approx(math.exp(math.log(2) - around))
    assert found.most == pytest.approx(math.exp(math.log(2) + around))
    assert found.is_tie
    assert ratio({0: 1.0}, {0: 2.0}) is None, "one seed has no interval"
    assert ratio({0: 1.0, 1: 1.0}, {0: 2.0, 2: 2.0}) is None


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([30.0, 31.0, 30.4], ""),
        ([20.0, 21.5, 20.4], "tie: 1.00x (1.00 to 1.00)"),
        ([19.0, 23.0, 20.0], "tie: "),
        ([15.0, 16.0, 15.4], "slower: 0.75x"),
    ],
)
def test_every_comparison_says_whether_it_is_a_tie(times: Sequence[float], words: str) -> None:
    _, compared = tables([*DDP, *runs(HOOK, times), *FAST])
    first = compared[0]
    assert first[0] == f"{ATTACHED} over {HOOK}"
    assert first[1].startswith(words)
    assert ("tie" in first[1]) == ("tie" in words)
    assert first[1] == first[2]


def test_its_tables_have_intervals_accuracies_plans_and_the_share_of_communication() -> None:
    rows = [*ALONE, *DDP, *SLOW, *FAST, *runs("PowerSGD 1", [9.0, 9.0, 9.0], 2.0)]
    methods, compared = tables(rows)
    assert methods[0] == ("alone", "1025 ± 62.1", "", "", "", "")
    assert methods[1] == ("DDP", "4100 ± 248", "10", "41 ± 2.48", "88.0", "")
    assert methods[3][:5] == (ATTACHED, "2063 ± 193", "10", "20.6 ± 1.93", "88.0")
    assert methods[3][5].startswith("1.99x (")
    assert methods[4] == ("PowerSGD 1", "900 ± 0.000", "-", "-", "88.0", "0 of 3 reach it")
    others = (HOOK, "PowerSGD 1", JUDGE)
    assert [each[0] for each in compared] == [f"{ATTACHED} over {other}" for other in others]
    assert compared[1][1] == "not reached by PowerSGD 1"
    assert compared[1][2].startswith("slower: 0.4")
    said = texts(rows)
    assert "gpt on digits, 2 hosts at 1gbit, 3 seeds: communication takes 75% of DDP's step" in said
    assert f"{ATTACHED}: fp8 ring 1024K (3 of 3 seeds)" in said
    assert [len(each) for each in (COLUMNS, COMPARISONS)] == [6, 3]
    assert max(map(len, lines(*table(rows)))) <= 80


def test_the_best_fixed_plan_and_the_runner_up_are_compared() -> None:
    plans = [*runs("fp8 on DDP", [19.0, 20.0, 19.4]), *runs("ecsq:0.5 on DDP", [18.0, 19.0, 18.6])]
    _, compared = tables([*DDP, *SLOW, *FAST, *plans, *runs(PIPELINED, [50.0, 51.0, 50.4])])
    assert [each[0] for each in compared] == [
        f"{ATTACHED} over {HOOK}",
        f"{ATTACHED} over {JUDGE}",
        f"ecsq:0.5 on DDP, the best fixed plan, over {ATTACHED}",
        f"{PIPELINED} over {HOOK}",
        "ecsq:0.5 on DDP, the best fixed plan, over fp8 on DDP",
    ]
    assert compared[3][1].startswith("slower: 0.60x")


def test_a_method_that_misses_the_loss_once_has_no_time() -> None:
    missed = [*FAST[:2], {**FAST[2], "curve": [(10, 20.0, None)]}]
    methods, compared = tables([*DDP, *SLOW, *missed])
    assert methods[2][2:] == ("-", "-", "88.0", "2 of 3 reach it")
    assert compared[0][1] == f"not reached by {ATTACHED}"
    assert trained([*DDP, *missed]).ranking == [trained(DDP).judge]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"accuracies": [0.7]}, "did not learn: the exact training run of DDP ends at 0.700"),
        ({"accuracies": [math.nan]}, "did not learn"),
        ({"goal": None}, "no goal is set"),
    ],
)
def test_a_dead_training_has_no_figures(changed: dict[str, object], problem: str) -> None:
    dead = [{**row, **changed} for row in [*ALONE, *DDP, *SLOW, *FAST]]
    assert tables(dead) == []
    assert f"No time, speed, or ratio of gpt counts: {problem}" in texts(dead)
    found = summary({"GPT": dead}, {ATTACHED: "attach", JUDGE: "DDP", HOOK: "hook"})
    assert not any("ms" in cell or "x" in cell for row in found.rows for cell in row[1:])


def test_two_seeds_are_too_few() -> None:
    few = [row for row in [*DDP, *SLOW, *FAST] if row["seed"] < 2]
    assert tables(few) == []
    assert "too short: an interval needs 3 seeds, got 2" in texts(few)


def test_the_summary_has_what_attach_does_as_it_comes() -> None:
    names = {
        JUDGE: "plain DDP",
        HOOK: "the hook",
        ATTACHED: "attach",
        PIPELINED: "pipe",
        POWER_SGD: "low rank",
    }
    low_rank = runs(POWER_SGD, [20.0, 21.5, 20.4])
    found = summary(
        {"A": [*DDP, *SLOW, *low_rank, *FAST], "B": [*DDP, *SLOW, *runs(ATTACHED, [31.0, 30.0, 30.5])]}, names
    )
    assert [column.name for column in found.columns][1:] == ["A", "B"]
    by_name = {row[0]: row[1:] for row in found.rows}
    assert by_name["attach"][0] == "2063 ms, 20.6 s"
    assert by_name["pipe"] == ["-", "-"]
    assert by_name["attach over plain DDP, time to loss"][0].startswith("1.99x (")
    assert by_name["attach over the hook, time to loss"][1].startswith("tie: ")
    assert by_name["attach over low rank, time to loss"] == ["tie: 1.00x (1.00 to 1.00)", "-"]
