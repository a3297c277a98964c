from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire import Plan
from gradwire.autotune.decision import Decision
from gradwire.errors import StateError
from gradwire.sync.ledger.counts import Decided
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.sinks import JsonLines, TensorBoard
from support.ledgers import SMALL

PLAN = Plan.of("quantize:8", codecs=[{"match": "bias$", "codec": "bf16"}])
DECISION = Decision(PLAN, 0.5, 1.25, 0.25, "quantize:8 over ring")


class Writer:
    """Remembers what a ``SummaryWriter`` is given."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.texts: dict[tuple[str, int], str] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag, step] = value

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts[tag, step] = text


def test_a_decision_is_in_the_line_the_summary_and_tensorboard_of_its_step(tmp_path: Path) -> None:
    path, writer = tmp_path / "steps.jsonl", Writer()
    ledger = Ledger(0, [JsonLines(path), TensorBoard(writer)])
    for step in (1, 2, 3):
        if step == 2:
            ledger.decided(2, DECISION)
        ledger.exchanged("bucket 1", SMALL)
        ledger.end_step()
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert ["decided" in line for line in lines] == [False, True, False]
    (found,) = lines[1]["decided"]
    assert Plan.from_json(json.dumps(found.pop("plan"))) == PLAN
    reason = "from step 2 on, quantize:8 over ring"
    assert found == {"step": 2, "reason": reason, "step_s": 0.5, "uncompressed_s": 1.25}
    assert writer.scalars["gradwire/expected_step_s", 2] == 0.5
    assert writer.scalars["gradwire/expected_uncompressed_s", 2] == 1.25
    assert ("gradwire/expected_step_s", 3) not in writer.scalars
    (text,) = writer.texts.values()
    assert reason in text
    assert '"match": "bias$"' in text
    assert reason in str(ledger.summary()).splitlines()


def test_a_writer_of_scalars_alone_gets_these() -> None:
    class Scalars:
        def __init__(self) -> None:
            self.tags: list[str] = []

        def add_scalar(self, tag: str, _value: float, _step: int) -> None:
            self.tags.append(tag)

    writer = Scalars()
    ledger = Ledger(0, [TensorBoard(writer)])
    ledger.decided(1, DECISION)
    ledger.end_step()
    assert "gradwire/expected_step_s" in writer.tags
    assert ledger.summary().lost_sinks == ()


def test_decisions_go_through_a_ledgers_state_and_earlier_ones_have_none() -> None:
    ledger, resumed = Ledger(1), Ledger(1)
    ledger.decided(1, DECISION)
    ledger.end_step()
    ledger.decided(2, DECISION)
    state = json.loads(json.dumps(ledger.state_dict()))
    resumed.load_state_dict(state)
    assert resumed.summary() == ledger.summary()
    assert [text[:11] for text in resumed.summary().decided] == ["from step 1", "from step 2"]
    del state["decided"], state["crc32c"]
    resumed.load_state_dict(state | {"version": 4})
    assert resumed.summary().decided == ()


@pytest.mark.parametrize("wrong", [3, {}, {"step": 1}])
def test_what_is_no_decision_is_refused(wrong: object) -> None:
    ledger = Ledger(1)
    ledger.decided(1, DECISION)
    with pytest.raises(StateError, match=r"for decided.* in a ledger's state, got"):
        Ledger(1).load_state_dict(ledger.state_dict() | {"decided": [wrong]})
    row = ledger.state_dict()["decided"][0]
    reason, plan = f"from step 1 on, {DECISION.reason}", DECISION.plan.to_json()
    assert Decided.of_state(row) == Decided(1, reason, plan, DECISION.step_s, DECISION.uncompressed_s)
