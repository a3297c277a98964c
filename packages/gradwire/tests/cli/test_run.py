"""``gradwire run``: its words, and unchanged scripts under torchrun."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

import gradwire
from gradwire.cli import main

SCRIPT = """
import hashlib, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(300, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.randn(32, 300)).square().mean().backward()
    optimizer.step()
    if rank == 0:
        os.write(1, f"step {step}\\n".encode())  # at once, so that ranks don't write into each other's lines
flat = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
os.write(1, f"weights {hashlib.sha256(flat.tobytes()).hexdigest()}\\n".encode())
dist.barrier()  # torchrun ends the other rank as soon as one fails
sys.exit(5)
"""
"""A script without gradwire, which fails at its end; its argument is the number of steps."""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "gradwire: expected a command after '--', got none; for example: gradwire run -- torchrun"),
        (["torchrun", "train.py"], "before the command, got none; write gradwire run -- torchrun train.py"),
        (["--compare", "torchrun", "-h"], "write gradwire run --compare -- torchrun -h"),
        (["--compare", "ddp", "x"], "write gradwire run --compare ddp -- x"),
        (["--steps=20", "--comprae", "--", "x"], "got --comprae (did you mean '--compare'?)"),
        (["--codec", "fp8", "--plan", "p.json", "--", "x"], "expected --codec or --plan, got both"),
        (["--codec", "fp9", "--", "x"], "fp9"),
        (["--plan", "none.json", "--", "x"], "none.json"),
        (["--steps", "20", "--", "x"], "expected --compare with --steps, got only --steps"),
        (["--compare", "--steps", "3", "--", "x"], "expected 12 to 10000 for --steps, got 3"),
        (["--timeout", "soon", "--", "x"], "soon"),
        (["--", "/no/such/program"], "/no/such/program cannot be started: No such file"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_an_older_result_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record.json").write_text("mine", encoding="utf-8")
    assert main(["run", "--out", str(tmp_path), "--", "x"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "record.json").read_text(encoding="utf-8") == "mine"


def test_words_become_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradwire.run import run as module

    found: list[Any] = []

    def run_attached(options: Any) -> int:
        found.append(options)
        return 7

    monkeypatch.setattr(module, "run_attached", run_attached)
    gradwire.Plan.of("quantize:8").save(tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--plan", "plan.json", "--compare", "--timeout", "90s", "--", "a", "--", "b"]) == 7
    assert main(["run", "--codec", "auto", "--strict", "--out", "o", "--", "a"]) == 7
    first, second = found
    assert (first.command, first.plan, first.timeout_s) == (("a", "--", "b"), str(tmp_path / "plan.json"), 90)
    assert (first.compare, first.cycles, first.out.parent) == (True, 5, Path("runs"))
    assert (second.plan, second.strict, str(second.out)) == (None, True, "o")


@pytest.mark.processes
def test_an_unchanged_script_is_attached_and_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--compare", "--steps", "12", "--codec", "fp8", "--timeout", "60s", "--out", "out"]
    done = run(
        [sys.executable, "-m", "gradwire", "run", *options, "--", *torchrun, "train.py", "70"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    said = " ".join(done.stderr.split())
    assert "gradwire: attached to DistributedDataParallel 'Linear' (240.8kB of gradients)" in said
    assert "with fp8 over ring" in said
    assert "The loss was not compared" in said
    assert [line for line in done.stdout.splitlines() if line.startswith("step")] == [
        f"step {step}" for step in range(70)
    ]
    weights = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    assert len(weights) == 2
    assert len({*weights}) == 1, "both ranks have the same weights"
    record = json.loads((tmp_path / "out" / "record.json").read_text(encoding="utf-8"))
    assert [len(each) for each in record["cycles_s"].values()] == [3, 3, 3]
    assert record["exit_code"] == done.returncode == 1, "torchrun's code for a rank that failed"
