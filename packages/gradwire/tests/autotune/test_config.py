"""The thresholds of an automatic choice: each has a unit and a reason, and none is a constant elsewhere."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire import Auto, Link
from gradwire.autotune import AutoConfig, InitialPlan
from gradwire.autotune.settings import DEFAULT, terms_of
from gradwire.autotune.states import TRANSITIONS
from gradwire.errors import SpecError
from gradwire.planner.candidates import SEGMENTS_NBYTES
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import tell_line

ROOM = Path(gradwire.__file__).parent / "autotune"
SCRIPT = Path(__file__).parents[4] / "scripts" / "check_prose.py"
PROTOCOL = {"_UNKNOWN", "_DIGITS"}
"""What frames hold, which is no threshold."""


@pytest.mark.parametrize("each", fields(AutoConfig), ids=lambda each: each.name)
def test_every_threshold_has_a_unit_and_a_sentence_about_its_reason(each: Any) -> None:
    spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    prose = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prose)
    unit, why = each.metadata["unit"], each.metadata["why"]
    assert unit
    assert why[0].isupper()
    assert why.endswith(".")
    assert len(why.split()) > 3
    assert [*prose.check_page(why)] == []


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.name)
def test_no_module_has_a_number_of_its_own(path: Path) -> None:
    found = []
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and has_number(statement.value):
            found += [each.id for each in statement.targets if isinstance(each, ast.Name)]
    assert {*found} <= PROTOCOL


def has_number(node: ast.AST) -> bool:
    """Whether a value has one, apart from the arguments of calls."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return not isinstance(node, ast.Call) and any(map(has_number, ast.iter_child_nodes(node)))


def test_a_run_with_other_thresholds_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_line(monkeypatch)
    config = AutoConfig(warm_up_steps=8, most_trials=1)

    def train(link: Link) -> Run:
        run = Run(link, Auto(config=config))
        for number in range(1, 12):
            run.step(number)
        return run

    assert [[step for step, _ in run.tuner.decisions] for run in run_ranks(2, train)] == [[9], [9]]


def test_changed_thresholds_are_terms_of_a_saved_decision() -> None:
    plain = terms_of(Auto())
    assert terms_of(Auto(config=AutoConfig())) == plain
    changed = Auto(config=replace(DEFAULT, turn_steps=7, stay_share=0.1))
    assert terms_of(changed) == f"{plain}; turn_steps=7, stay_share=0.1"
    facts = InitialPlan.of(changed).facts
    assert facts != InitialPlan.of("auto").facts, "ranks with different thresholds would decide differently"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            {"turn_steps": 0},
            "expected a whole number of at least 1 for turn_steps, got 0; omit turn_steps to use 5",
        ),
        ({"turn_steps": 2.5}, r"expected a whole number of at least 1 for turn_steps, got 2\.5"),
        ({"turn_steps": True}, "got True"),
        ({"warm_up_steps": 1}, "expected a whole number of at least 2 for warm_up_steps, got 1"),
        ({"stay_share": "much"}, "expected a number above 0 for stay_share, got 'much'"),
        ({"stay_share": float("nan")}, "got nan"),
    ],
)
def test_invalid_thresholds_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        AutoConfig(**wrong)
    with pytest.raises(SpecError, match="expected an AutoConfig for config, got 3"):
        Auto(config=3)  # type: ignore[arg-type]  # that is what it checks


def test_codecs_are_measured_on_as_much_as_the_smallest_segment_has() -> None:
    assert DEFAULT.part_nbytes == min(SEGMENTS_NBYTES)
    assert DEFAULT.resample_steps % DEFAULT.window_steps == 0


def test_docs_show_every_transition_and_every_threshold() -> None:
    path = Path(__file__).parents[4] / "docs" / "_site" / "choices.py"
    spec = importlib.util.spec_from_file_location("choices", path)
    assert spec is not None
    assert spec.loader is not None
    choices = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(choices)
    for write, rows in ((choices.transitions, TRANSITIONS), (choices.thresholds, fields(DEFAULT))):
        lines = write().splitlines()
        assert len(lines) == 2 + len(rows)
        assert len({line.count("|") for line in lines}) == 1, "no cell has a bar of its own"
        assert all(cell.strip() for line in lines[2:] for cell in line.strip("|").split("|"))
    page = (path.parents[1] / "auto.md").read_text(encoding="utf-8")
    assert "<!-- site: transitions -->" in page
    assert "<!-- site: thresholds -->" in page
