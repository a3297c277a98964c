from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.pipe import correction
from gradwire_lab.job import options
from support.torch_free import check_commands, check_import


@pytest.mark.parametrize(
    "module",
    ["gradwire_lab.cli", "gradwire_lab.experiments", "gradwire_lab.testbed.supervisor"],
)
def test_a_module_that_starts_processes_or_commands_does_not_import_torch(module: str) -> None:
    check_import(module)


WITHOUT_TORCH = [
    "train --help",
    "train --codex fp8",
    "train --codec fp9",
    "train --codec quantize:9",
    "train --method pip",
    "train --runs sink",
    "train --data cifar",
    "train --model resnet",
    "train --rate 1gbitt",
    "train --correction egar",
    "train --segment 1mb",
    "train --batch 10 --workers 4",
    "train --workers 0",
    "train --plan missing.json",
    "train --compare --method pipe",
    "bench --help",
    "line-rate --help",
    "line-rate --sizes 4x",
    "bench allreduce --help",
    "bench allreduce --codecs fp8,fp9",
    "bench allreduce --algorithms rign",
    "testbed --help",
    "testbed run --help",
    "reproduce --help",
    "reproduce --list",
    "report --help",
    "report missing",
    "experiment",
    "experiment --list",
    "experiment --help",
    "experiment speed",
    "experiment prediction --networks 4",
    "experiment scaling --help",
    "experiment scaling --hosts two",
    "experiment scaling --hosts 1",
    "experiment scaling --nbytes 1mb",
    "experiment line-share --codecs fp8,fp9",
    "experiment auto --tasks mnist",
    "experiment auto --help",
    "experiment training-speed --tasks mnist",
    "experiment training-speed --methods Adam",
    "experiment training-speed --data-dir missing",
]


def test_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    check_commands(WITHOUT_TORCH, tmp_path)


def test_constants_that_are_written_twice_to_save_an_import_agree() -> None:
    assert options.CORRECTIONS == correction.CORRECTIONS
