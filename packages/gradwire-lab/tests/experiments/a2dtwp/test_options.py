from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire_lab.experiments.a2dtwp import EXPERIMENT, options
from gradwire_lab.experiments.a2dtwp.options import A2dtwpOptions


def words(*said: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    EXPERIMENT.add_arguments(parser)
    return parser.parse_args(said)


def test_without_options_everything_is_compared() -> None:
    assert EXPERIMENT.read(words()) == A2dtwpOptions()
    kinds = Counter(cell["kind"] for cell in options.cells(A2dtwpOptions()))
    # Lossless policies share the trainings of the weights that they carry.
    assert kinds == {
        "longer": len(options.NETWORKS) - 1,
        "training": (len(options.NETWORKS) - 1) * 6 * 3 + 3,  # and AlexNet without batch normalization
        "pace": 1,
        "batch": len(options.MODELS) * len(options.TIMED) * A2dtwpOptions().timed_rounds,
    }
    assert next(iter(options.cells(A2dtwpOptions()))) == {"kind": "longer", "model": "vgg"}


def test_options_choose(tmp_path: Path) -> None:
    said = (
        "--data-dir",
        str(tmp_path),
        "--models",
        "vgg",
        "--policies",
        "awp,fp32,awp",
        "--seed-list",
        "4,5",
    )
    found = EXPERIMENT.read(words(*said))
    assert (found.data_dir, found.seeds) == (tmp_path, (4, 5))
    trained = [(cell["policy"], cell["seed"]) for cell in options.cells(found) if cell["kind"] == "training"]
    assert trained == [("awp", 4), ("fp32", 4), ("awp", 5), ("fp32", 5)]


def test_without_timed_networks_nothing_is_paced() -> None:
    found = EXPERIMENT.read(words("--timed", ""))
    assert {cell["kind"] for cell in options.cells(found)} == {"longer", "training"}


def test_policies_take_turns_in_every_round_of_a_network() -> None:
    found = [cell for cell in options.cells(A2dtwpOptions(timed=("vgg",))) if cell["kind"] == "batch"]
    rounds = [[cell["policy"] for cell in found if cell["round"] == number] for number in range(3)]
    assert [sorted(each) for each in rounds] == [sorted(options.TIMED)] * 3
    assert len({each[0] for each in rounds}) == 3, "each begins with another one"


def test_an_epoch_is_watched_and_twelve_intervals_follow() -> None:
    for size in (32, 64):
        epoch = A2dtwpOptions().images // size
        assert A2dtwpOptions().batches - epoch >= 12 * (epoch // 2)


def test_the_links_are_those_of_the_published_tables() -> None:
    x86, power = options.SYSTEMS["x86"], options.SYSTEMS["power"]
    assert x86.compute_ms == pytest.approx(128.72 + 33.51)
    assert power.compute_ms == pytest.approx(69.78 + 12.66)
    assert (x86.to_device_ms, power.to_device_ms) == (153.93, 39.12)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["--models", "lenet"], "expected --models from alexnet, vgg, resnet, alexnet-bn, vgg-bn"),
        (["--policies", "bf8"], "expected --policies from fp32, bf16, static:8"),
        (["--timed", "lenet"], "expected --timed from alexnet, vgg, resnet, got 'lenet'"),
        (["--models", ""], "expected --models from .*, got 'nothing'"),
        (
            ["--models", "alexnet", "--policies", "bf16,awp"],
            "expected fp32 in --policies, because only fp32 trains alexnet, got bf16, awp; add fp32",
        ),
        (["--batches", "9"], "expected --batches of at least 10, got 9"),
        (["--narrower", "3"], "expected a divisor of 64 for --narrower, got 3"),
        (["--seed-list", "0"], "expected --seed-list of at least 1, got 0"),
        (["--seed-list", "one"], "for --seed-list, got 'one'"),
        (["--data-dir", "/nowhere"], "expected a folder for --data-dir, got /nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(said: list[str], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        EXPERIMENT.read(words(*said))
