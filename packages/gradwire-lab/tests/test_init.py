from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradwire
from gradwire.cli import plan
from gradwire.pipe import correction
from gradwire.planner.result import FARTHEST
from gradwire_lab.job import options


@pytest.mark.parametrize(
    "code",
    ["import gradwire", "from gradwire.cli import main; main(['--version'])", "import gradwire.units"],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60).returncode == 0


WITHOUT_TORCH = [
    "",
    "--help",
    "train --help",
    "train --codex fp8",
    "train --codec fp9",
    "train --codec quantize:9",
    "train --method pip",
    "train --runs sink",
    "train --data cifar",
    "train --model resnet",
    "train --link 1gbitt",
    "train --correction egar",
    "train --segment 1mb",
    "train --batch 10 --workers 4",
    "train --workers 0",
    "train --plan missing.json",
    "train --compare --method pipe",
    "plan --help",
    "plan --hosts 8",
    "plan --modle 25M --hosts 8",
    "plan --model 25M --hosts 8 --rate 1gbps",
    "plan --model 25M --hosts 8 --rate 1gbit --latency 50",
    "plan --model 25M --hosts 8 --rate 1gbit --codecs fp8,fp9",
    "plan --model 25M --hosts 8 --rate 1gbit --algorithms rign",
    "plan --model 25M --hosts 8 --rate 1gbit --backward 200",
    "plan --model 0.5 --hosts 8 --rate 1gbit",
    "bench --help",
    "bench line-rate --help",
    "bench line-rate --sizes 4x",
    "bench allreduce --help",
    "bench allreduce --codecs fp8,fp9",
    "bench allreduce --algorithms rign",
    "doctor --help",
    "doctor now",
    "testbed --help",
    "testbed run --help",
    "profile --help",
    "profile --",
    "profile --hosts 1 -- train.py",
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
    "codecs",
    "codecs --help",
    "codecs --all",
]


def test_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    check = (
        "import contextlib, io, sys\n"
        "from gradwire.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "        code = main(words.split())\n"
        "    done = words.split()[-1:] in ([], ['--help'], ['--list'], ['codecs'])\n"
        "    if code not in ((0,) if done else (0, 2)):\n"
        "        sys.exit(f'{words!r} ended with {code}')\n"
        "    heavy = {'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "    if heavy:\n"
        "        sys.exit(f'{words!r} imports {heavy}')\n"
    )
    command = [sys.executable, "-c", check, *WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_constants_that_are_written_twice_to_save_an_import_agree() -> None:
    assert options.CORRECTIONS == correction.CORRECTIONS
    assert plan.FARTHEST == FARTHEST


def test_every_public_name_loads_and_the_others_are_refused() -> None:
    for name in gradwire.__all__:
        assert getattr(gradwire, name).__name__ == name
        assert name in dir(gradwire)
    with pytest.raises(AttributeError, match="no attribute 'everything'"):
        getattr(gradwire, "every" + "thing")
