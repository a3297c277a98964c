"""What all experiments have in common, and how rows belong to cells."""

from __future__ import annotations

import argparse
import json

import pytest

from gradwire_lab.experiments import EXPERIMENTS
from gradwire_lab.experiments.experiment import (
    cells_of,
    grouped,
    in_order,
    in_words,
    is_row_of,
    select,
    turned,
)
from support.project import DOCS

CELLS = [{"hosts": 2, "codec": "fp8"}, {"hosts": 4, "codec": "fp8"}, {"hosts": 4, "codec": "bf16"}]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_default_options_are_those_of_the_command(name: str) -> None:
    experiment = EXPERIMENTS[name]
    parser = argparse.ArgumentParser()
    experiment.add_arguments(parser)
    options = experiment.read(parser.parse_args([]))
    assert options == type(options)()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_cells_differ_and_survive_json(name: str) -> None:
    experiment = EXPERIMENTS[name]
    parser = argparse.ArgumentParser()
    experiment.add_arguments(parser)
    cells = experiment.cells(experiment.read(parser.parse_args([])))
    assert json.loads(json.dumps(cells)) == cells
    assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells) > 1
    assert in_order(cells, list(reversed(cells))) == cells


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_name_and_its_question_in_one_line_are_on_the_page(name: str) -> None:
    experiment = EXPERIMENTS[name]
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    assert experiment.name == name
    assert experiment.question.endswith("?")
    assert len(experiment.question) <= 62
    assert f"| `{name}` |" in page
    assert experiment.schema == f"gradwire.experiment-{name}/{experiment.version}"


def test_a_row_has_all_names_and_values_of_its_cell() -> None:
    row = {"hosts": 4, "codec": "fp8", "seconds": [1.0, 2.0]}
    assert [is_row_of(cell, row) for cell in CELLS] == [False, True, False]
    assert not is_row_of({"hosts": 4, "rate": None}, row)


def test_rows_come_in_the_order_of_the_cells_and_strangers_do_not() -> None:
    rows = [{**CELLS[2], "s": 1}, {"hosts": 8, "codec": "fp8", "s": 2}, {**CELLS[0], "s": 3}]
    assert in_order(CELLS, rows) == [rows[2], rows[0]]


def test_a_line_of_progress_leaves_out_what_all_cells_share() -> None:
    row = {**CELLS[1], "seconds": 0.123456, "plan": "", "curve": [1, 2, 3]}
    assert in_words(row, CELLS) == "hosts 4  codec fp8  seconds 0.1235"
    assert in_words(row, CELLS[:2]) == "hosts 4  seconds 0.1235"
    assert in_words(row, CELLS[1:2]) == "hosts 4  codec fp8  seconds 0.1235"


def test_cells_have_all_combinations_and_what_they_have_in_common() -> None:
    cells = cells_of({"rate": "1gbit"}, hosts=(2, 4), codec=["fp8", "bf16"])
    assert [(cell["hosts"], cell["codec"]) for cell in cells] == [
        (2, "fp8"),
        (2, "bf16"),
        (4, "fp8"),
        (4, "bf16"),
    ]
    assert {cell["rate"] for cell in cells} == {"1gbit"}
    assert cells_of(hosts=(2, 4), codec=()) == []


def test_rows_are_selected_by_names_that_others_may_lack() -> None:
    rows = [{**CELLS[1], "ratio": 1.0}, *CELLS]
    assert select(rows, ratio=1.0) == rows[:1]
    assert select(rows, hosts=4, codec="fp8") == [rows[0], rows[2]]
    assert grouped(rows, "hosts") == {4: [rows[0], *rows[2:]], 2: [rows[1]]}


def test_each_turn_begins_with_another_name() -> None:
    names = ["a", "b", "c"]
    assert [turned(names, number, 3)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(turned(names, 1, 3)) == names
    assert turned([], 1, 3) == []
