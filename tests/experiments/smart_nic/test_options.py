from __future__ import annotations

import argparse

import pytest

from gradwire.errors import GradwireError
from gradwire.experiments.smart_nic.options import (
    BFP,
    IDENTITY,
    METHODS,
    RING,
    STEP,
    Options,
    add_arguments,
    cells,
    part_of,
    read,
)


def parsed(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read(parser.parse_args(words))


def test_every_method_steps_with_and_without_compression() -> None:
    steps = part_of(cells(Options(hosts=3, rate="100mbit")), STEP)
    assert {(step["method"], step["codec"]) for step in steps} == {
        (method, codec) for method in METHODS for codec in (IDENTITY, BFP)
    }
    assert {(step["hosts"], step["rate"]) for step in steps} == {(3, "100mbit")}


def test_parts_that_are_not_named_are_left_out() -> None:
    assert {cell["part"] for cell in cells(parsed("--parts", "ring"))} == {RING}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--parts", "rings"), "--parts must be among paper, ring, step, but 'rings' came"),
        (("--hosts", "1"), "at least 2 hosts, but 1 came"),
        (("--layers", "1"), "--layers must be 2 or more, but is 1"),
        (("--width", "8"), "--width must be 64 or more, but is 8"),
        (("--batch", "0"), "--batch must be 1 or more, but is 0"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(GradwireError, match=reason):
        parsed(*words)
