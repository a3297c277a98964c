from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire.experiments.a2dtwp import options
from gradwire.experiments.a2dtwp.options import Options


def words(*said: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return parser.parse_args(said)


def test_without_options_everything_is_compared() -> None:
    assert options.read(words()) == Options()
    cells = options.cells(Options())
    assert len(cells) == len(options.MODELS) * len(options.POLICIES)
    assert cells[0] == {"model": "alexnet", "policy": "fp32"}


def test_options_choose(tmp_path: Path) -> None:
    found = options.read(
        words(
            "--data-dir", str(tmp_path), "--system", "power", "--models", "vgg", "--policies", "awp,fp32,awp"
        )
    )
    assert (found.data_dir, found.systems) == (tmp_path, ("power",))
    assert [cell["policy"] for cell in options.cells(found)] == ["awp", "fp32"]


def test_the_links_are_those_of_the_published_tables() -> None:
    x86, power = options.SYSTEMS["x86"], options.SYSTEMS["power"]
    assert x86.compute_ms == pytest.approx(128.72 + 33.51)
    assert power.compute_ms == pytest.approx(69.78 + 12.66)
    assert (x86.to_device_ms, power.to_device_ms) == (153.93, 39.12)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["--system", "arm"], "--system must be among x86, power, unlimited, but 'arm' came"),
        (["--models", ""], "--models must be among alexnet, vgg, resnet, but '' came"),
        (["--policies", "bf8"], "--policies must be among fp32, bf16, static:8"),
        (["--batches", "9"], "--batches must be 10 or more, but is 9"),
        (["--narrower", "3"], "--narrower must divide 64, but is 3"),
        (["--interval", "0"], "--interval must be 1 or more, but is 0"),
        (["--data-dir", "/nowhere"], "--data-dir must name a folder, but /nowhere is none"),
    ],
)
def test_a_mistake_is_one_sentence(said: list[str], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        options.read(words(*said))
