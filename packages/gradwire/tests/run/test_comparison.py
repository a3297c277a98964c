from __future__ import annotations

from itertools import pairwise

import pytest

from gradwire.run.comparison import (
    ATTACHED,
    BF16,
    BLOCK_STEPS,
    METHODS,
    PLAIN,
    SKIPPED_STEPS,
    Compared,
    Turns,
)
from gradwire.tables import lines


def played(cycles: int, steps: int, seconds: dict[str, float]) -> tuple[Turns, list[str]]:
    turns, now, seen = Turns(METHODS, cycles), 0.0, []
    for _ in range(steps):
        method = turns.method
        seen.append(method)
        turns.passed(now, now + seconds[method])
        now += seconds[method]
    return turns, seen


def test_blocks_take_turns_and_the_order_alternates() -> None:
    turns, seen = played(2, 31, dict.fromkeys(METHODS, 1.0))
    blocks = [seen[start : start + 5] for start in range(0, 30, 5)]
    assert [set(each) for each in blocks] == [{PLAIN}, {BF16}, {ATTACHED}, {ATTACHED}, {BF16}, {PLAIN}]
    assert turns.is_over
    assert seen[30] == ATTACHED, "the script goes on attached"


def test_a_block_counts_the_median_without_its_first_step() -> None:
    turns = Turns((PLAIN, ATTACHED), 1)
    for seconds in (100.0, 1.0, 3.0, 2.0, 50.0):
        turns.passed(0.0, seconds)
    assert turns.cycles(float) == {PLAIN: (), ATTACHED: ()}, "the cycle is not complete"
    for _ in range(SKIPPED_STEPS + BLOCK_STEPS):
        turns.passed(0.0, 1.0)
    assert turns.cycles(float) == {PLAIN: (2.5,), ATTACHED: (1.0,)}


def test_rounds_are_given_their_methods_in_every_order() -> None:
    seconds = {PLAIN: 3.0, BF16: 2.0, ATTACHED: 1.0}
    turns, _ = played(3, 45, seconds)
    assert turns.cycles(float) == {method: (seconds[method],) * 3 for method in METHODS}


def compared(plain: float, bf16: float, scatter: float = 0.01, cycles: int = 5) -> Compared:
    noise = [1 + scatter * (number - (cycles - 1) / 2) for number in range(cycles)]
    return Compared(
        {
            PLAIN: tuple(plain * each for each in noise),
            BF16: tuple(bf16 * each for each in reversed(noise)),
            ATTACHED: (1.0,) * cycles,
        },
        5,
        "fp8 over ring",
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (compared(2.0, 1.5), "a step was 2.00 times as fast as with PyTorch's own all-reduce (1."),
        (compared(2.0, 1.0), ", and as fast as with its bf16 hook, a tie: 1.00 times as fast (0.9"),
        (compared(0.5, 0.6), "a step was slower than with PyTorch's own all-reduce: 0.50 times as fast (0."),
        (compared(1.0, 2.0, scatter=0.1), "a step was too noisy to compare with PyTorch's own all-reduce: "),
        (compared(2.0, 1.5, cycles=2), "Too short to compare: the script ended after 2 of 5 cycles"),
        (Compared({}, 5, ""), "Too short to compare: the script ended after 0 of 5 cycles"),
        (Compared({PLAIN: (2.0, 2.1, 2.0), ATTACHED: (1.0, 1.0, 1.0)}, 3, ""), "fast as with PyTorch's own"),
    ],
)
def test_the_verdict_has_intervals(found: Compared, words: str) -> None:
    assert words in found.verdict()


def test_the_table_has_a_row_for_each_way() -> None:
    text = lines(compared(2.0, 1.0).table())
    assert [line.split("  ")[0].strip() for line in text[-3:]] == [
        "plain",
        "bf16 hook",
        "gradwire, fp8 over ring",
    ]
    assert "2.0" in text[-3]
    assert "tie: " in text[-2]
    noisy = lines(compared(1.0, 2.0, scatter=0.1).table())
    assert "noisy: " in noisy[-3]
    assert "tie" not in "".join(noisy)
    few = lines(compared(2.0, 1.0, cycles=1).table())
    assert "x (" not in "".join(few), "one cycle has no interval"


def test_a_slower_machine_in_some_rounds_changes_no_ratio() -> None:
    drift = (1.0, 1.5, 4.0, 0.3, 2.0)
    cycles = {PLAIN: tuple(3 * each for each in drift), ATTACHED: drift}
    ratio = Compared(cycles, 5, "").ratio(PLAIN)
    assert (ratio.least, ratio.mean, ratio.most) == pytest.approx((3.0, 3.0, 3.0))
    assert all(a != b for a, b in pairwise(drift))
