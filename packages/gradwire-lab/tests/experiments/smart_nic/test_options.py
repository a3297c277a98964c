from __future__ import annotations

import argparse
from itertools import pairwise

import pytest

from gradwire.errors import GradwireError
from gradwire_lab.experiments.experiment import Cell, select
from gradwire_lab.experiments.smart_nic import EXPERIMENT
from gradwire_lab.experiments.smart_nic.options import (
    ALL,
    CALIBRATION,
    COMPARED,
    NICS,
    RING,
    STEP,
    SmartNicOptions,
    cells,
)
from gradwire_lab.experiments.smart_nic.verdict import is_calibrated_on


def parsed(*words: str) -> SmartNicOptions:
    parser = argparse.ArgumentParser()
    EXPERIMENT.add_arguments(parser)
    return EXPERIMENT.read(parser.parse_args(words))


def place(cell: Cell) -> tuple[object, ...]:
    return tuple(cell[name] for name in ("hosts", "rate", "width", "batch"))


def test_every_option_has_its_word() -> None:
    assert parsed() == SmartNicOptions()


def test_no_training_has_the_configuration_that_the_model_is_calibrated_on() -> None:
    found = cells(SmartNicOptions(parts=(STEP,)))
    (calibration,) = select(found, part=CALIBRATION)
    assert found[0] == calibration
    assert place(calibration) == (2, "200mbit", 256, 448)
    assert not any(is_calibrated_on(calibration, step) for step in select(found, part=STEP))


def test_all_comparators_are_trained_on_the_most_hosts_and_nics_wherever_one_thing_differs() -> None:
    methods: dict[tuple[object, ...], list[tuple[str, str]]] = {}
    for cell in select(cells(SmartNicOptions(parts=(STEP,))), part=STEP):
        methods.setdefault(place(cell), []).append((cell["method"], cell["codec"]))
    assert methods == {
        (2, "200mbit", 512, 448): [*NICS],
        (2, "200mbit", 256, 1792): [*NICS],
        (2, "100mbit", 256, 448): [*NICS],
        (3, "200mbit", 256, 448): [*COMPARED],
        (4, "200mbit", 256, 448): [*ALL],
        (4, "200mbit", 256, 1792): [*COMPARED],
    }


def test_cells_of_a_network_follow_each_other() -> None:
    networks = [(cell["hosts"], cell["rate"]) for cell in cells(SmartNicOptions(parts=(STEP,)))]
    assert len(dict.fromkeys(networks)) == 1 + sum(one != other for one, other in pairwise(networks))


def test_parts_that_are_not_named_are_left_out() -> None:
    assert {cell["part"] for cell in cells(parsed("--parts", "ring"))} == {RING}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--parts", "rings"), "expected --parts from paper, ring, step, got 'rings'"),
        (("--hosts", "1"), "at least 2 hosts, got 1"),
        (("--layers", "1"), "expected --layers of at least 2, got 1"),
        (("--widths", "256,8"), "expected --widths of at least 64, got 8"),
        (("--batch-sizes", "0"), "--batch-sizes"),
        (("--max-steps", "4"), "expected --max-steps of at least 5, got 4"),
        (("--seeds", "0"), "expected --seeds of at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(GradwireError, match=reason):
        parsed(*words)
