from __future__ import annotations

import json
from typing import Any

import pytest

from gradwire import Ledger
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError
from gradwire.records import to_json
from gradwire.run.comparison import ATTACHED, PLAIN
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.run.run import page_of, record_of, report, verdict
from gradwire.sync.ledger.summary import ledger_fields
from gradwire.tables import lines

OPTIONS = {"command": ["torchrun", "train.py"], "plan": "fp8", "cycles": 3}


def model(name: str = "DDP 'GPT'") -> ModelOutcome:
    book = Ledger(0)
    for _ in range(4):
        book.exchanged(
            "bucket 0", ExchangeCost(frames=2, raw_nbytes=4000, wire_nbytes=1000, wait_s=0.1), 0.05
        )
        book.end_step()
    return ModelOutcome(name, plan="fp8 over ring", ledger=ledger_fields(book.state_dict(), book.summary()))


CYCLES = {PLAIN: (0.2, 0.21, 0.2), ATTACHED: (0.1, 0.1, 0.1)}
REFUSED = ModelOutcome("DDP 'D'", "the script attaches gradwire itself")


def printed(outcome: RunOutcome, cycles: int = 3) -> str:
    return " ".join(" ".join(lines(*report(outcome, cycles))).split())


def test_steps_ratio_wait_and_plan_are_said() -> None:
    text = printed(RunOutcome((model(),)))
    assert "gradwire: DDP 'GPT': 4 steps averaged by gradwire, the last step with fp8 over ring." in text
    assert "Training waited 200ms" in text
    assert "4.00 times fewer bytes" in text
    assert "Not attached" not in text


def test_what_is_not_attached_is_said_with_its_reason() -> None:
    text = printed(RunOutcome((REFUSED, model())))
    assert "gradwire: Not attached to DDP 'D': the script attaches gradwire itself." in text
    assert "4 steps" in text
    assert "not attached, because the script created no DistributedDataParallel" in printed(RunOutcome())


def test_a_comparison_is_said_with_what_it_cannot_tell() -> None:
    text = printed(RunOutcome((model(),), CYCLES, "fp8 over ring"))
    assert "With gradwire, a step was 2.0" in text
    assert "The loss was not compared" in text
    short = printed(RunOutcome((model(),), {PLAIN: (), ATTACHED: ()}, ""))
    assert "Too short to compare: the script ended after 0 of 3 cycles" in short
    assert "Too short" not in printed(RunOutcome((REFUSED,), {}, "")), "nothing was there to compare"


@pytest.mark.parametrize(
    "outcome",
    [
        RunOutcome(),
        RunOutcome((REFUSED,)),
        RunOutcome((model(),)),
        RunOutcome((model(), model(), REFUSED), CYCLES, "fp8 over ring"),
        RunOutcome((model(),), {}, ""),
    ],
)
def test_a_record_has_a_page(outcome: RunOutcome) -> None:
    record: Any = json.loads(to_json(record_of(OPTIONS, outcome, 3)))
    assert (record["schema"], record["exit_code"]) == ("gradwire.run/1", 3)
    page = page_of(record)
    assert page == page_of(record)
    text = " ".join(page.replace("&#39;", "'").split())
    assert verdict(outcome, 3).split(";")[0] in text
    for each in outcome.models:
        assert each.name in text
    assert ("Step times" in text) is bool(outcome.cycles_s)
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", 3),
        ("cycles_s", {"plain": "x"}),
        ("cycles_s", {"plain": [1.0], "attached": []}),
        ("options", None),
    ],
)
def test_a_damaged_record_is_refused(name: str, value: object) -> None:
    record: Any = json.loads(to_json(record_of(OPTIONS, RunOutcome((model(),)), 0)))
    with pytest.raises(JobError, match="run 'gradwire run' again"):
        page_of({**record, name: value})
