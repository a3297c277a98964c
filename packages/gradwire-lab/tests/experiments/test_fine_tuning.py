"""The fine-tuning experiment: its options, a small run, and claims that are reckoned by hand."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError, SpecError
from gradwire.tables import WIDTH, lines
from gradwire_lab.experiments import fine_tuning
from gradwire_lab.experiments.experiment import Reporter, Row
from gradwire_lab.experiments.fine_tuning import FineTuningOptions
from support.offloaded_rows import row

FALLING = [2.5, 2.4, 2.3, 2.2, 2.1, 2.0]


def read(*said: str) -> FineTuningOptions:
    parser = argparse.ArgumentParser()
    fine_tuning.EXPERIMENT.add_arguments(parser)
    return fine_tuning.EXPERIMENT.read(parser.parse_args(said))


def tuned(
    lr: float, policy: str, batch_s: float, nbytes: float, errors: list[float] = FALLING
) -> dict[str, Any]:
    return {**row(policy, batch_s, errors, sent_nbytes=nbytes), "lr": lr}


def test_without_options_all_rates_and_policies_are_compared() -> None:
    assert read() == FineTuningOptions()
    assert len(fine_tuning.cells(FineTuningOptions())) == len(fine_tuning.RATES) * len(fine_tuning.POLICIES)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["--lrs", "fast"], "expected learning rates such as 3e-5,1e-4, got 'fast'"),
        (["--lrs", "2"], "expected learning rates between 0 and 1, got"),
        (["--system", "arm"], "expected --system from x86, power, unlimited, got 'arm'"),
        (["--policies", "awp"], "expected --policies from fp32, bf16"),
        (["--batches", "1"], "expected --batches of at least 2, got 1"),
        (["--text", "/nowhere"], "expected a file for --text, got /nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(said: list[str], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        read(*said)


def test_a_small_run_learns_alike_and_sends_fewer_bytes(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 60)
    options = FineTuningOptions(str(text), (3e-5,), ("x86",), ("bf16", "delta"), training=1, batches=2)
    found = list[Row]()
    fine_tuning.run(options, fine_tuning.cells(options), [], Reporter(found.append, lambda _: None))
    bf16, delta = found
    assert [each["policy"] for each in found] == ["bf16", "delta"]
    assert [batch for batch, _ in bf16["errors"]] == [2]
    assert bf16["errors"] == delta["errors"], "a replica has the same bits"
    assert fine_tuning.fewer_bytes({"bf16": bf16, "delta": delta}, "delta", "x86") > 4


def test_a_run_that_fails_ends_its_threads(tmp_path: Path) -> None:
    def report(_row: Row) -> None:
        raise JobError("the disk is full")

    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 60)
    options = FineTuningOptions(str(text), (3e-5,), ("x86",), ("bf16", "delta"), training=1, batches=2)
    with pytest.raises(JobError, match="the disk is full") as caught:
        fine_tuning.run(options, fine_tuning.cells(options), [], Reporter(report, lambda _: None))
    assert caught.tb is not None, "which holds everything that wasn't closed"
    assert not [each for each in threading.enumerate() if each.name.startswith("gradwire")]


def test_claims_say_by_rate_what_deltas_save() -> None:
    by_rate = {
        f"{lr:g}": {
            "bf16": tuned(lr, "bf16", 2.0, 2e6),
            "delta": tuned(lr, "delta", 1.0, nbytes),
            "static:8": tuned(lr, "static:8", 1.5, 1e6, [5.0] * 6),
        }
        for lr, nbytes in ((3e-6, 1e5), (1e-4, 5e5))
    }
    found = {each.text: each for each in fine_tuning.claims(by_rate, "x86")}
    slow = found["bytes, bf16 over delta, lr to 3e-05"]
    assert slow.figures == {"3e-06": pytest.approx(20)}
    assert slow.is_met
    fast = found["bytes, bf16 over delta, lr to 0.0001"]
    assert fast.figures == {"0.0001": pytest.approx(4)}
    assert not fast.is_met
    assert [*found["time saved by delta, compared with bf16"].figures.values()] == pytest.approx([0.5, 0.5])
    # Both have a loss of 5 at their first evaluation, after 10 batches of 1 s and of 1.5 s.
    assert [*found["time saved by delta, compared with static:8"].figures.values()] == pytest.approx(
        [1 / 3, 1 / 3]
    )
    rows = [each for own in by_rate.values() for each in own.values()]
    printed = lines(*fine_tuning.table(rows))
    assert max(map(len, printed)) <= WIDTH
    shown, _ = [words for line in printed if (words := line.split())[:2] == ["3e-06", "delta"]]
    assert shown[3] == "20.0x"
    assert shown[-2:] == ["2.1000", "50.0"]
    assert any(line.startswith("bytes, bf16 over delta, lr to 3e-05") for line in printed)


@pytest.mark.parametrize(
    ("bf16_s", "unlimited_s", "delta_s", "verdict"),
    [
        (2.0, 1.96, 2.02, "explained"),
        (2.0, 1.96, 2.10, "not reproduced"),
        (2.0, 1.80, 2.02, "not reproduced"),
        (2.0, None, 2.02, "not reproduced"),
        (2.0, 1.80, 1.90, "reproduced"),
    ],
)
def test_nothing_is_saved_only_where_a_link_without_limit_saves_nothing(
    bf16_s: float, unlimited_s: float | None, delta_s: float, verdict: str
) -> None:
    bf16 = {**row("bf16", bf16_s, FALLING, unlimited_s, sent_nbytes=2e6), "lr": 1e-4}
    by_rate = {"0.0001": {"bf16": bf16, "delta": tuned(1e-4, "delta", delta_s, 1e5)}}
    found = {each.text: each for each in fine_tuning.claims(by_rate, "x86")}
    claim = found["time saved by delta, compared with bf16"]
    assert claim.verdict == verdict
    told = "an unlimited link would save at most 2.0% of the other policy's time"
    assert (told in claim.explained) == (verdict == "explained")


def test_without_deltas_nothing_is_claimed() -> None:
    assert [*fine_tuning.claims({"1e-04": {"bf16": tuned(1e-4, "bf16", 1.0, 2e6)}}, "x86")] == []
