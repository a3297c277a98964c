from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import pytest

from gradwire.cli import main

SCRIPT = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(300, 200))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "gradwire: expected a command after '--', got none; for example: gradwire profile "),
        (["--"], "gradwire: expected a command after '--', got none"),
        (["train.py"], "expected '--' before the command, got none; write gradwire profile -- train.py"),
        (["--steps", "3", "python", "-m", "x"], "write gradwire profile --steps 3 -- python -m x"),
        (["--step=3", "x"], "an option of gradwire profile, got --step (did you mean '--steps'?)"),
        (["--rates", "1gbit,fast", "--", "x"], "gradwire: expected a rate such as '100mbit', '12.5MBps'"),
        (["--hosts", "2,1", "--", "x"], "expected numbers from 2 to 256 for --hosts, such as 2,4,8, got"),
        (["--hosts", "2,x", "--", "x"], "gradwire: expected numbers from 2 to 256 for --hosts"),
        (["--steps", "1", "--", "x"], "gradwire: expected 3 to 10000 for --steps, got 1"),
        (["--warm-up", "0", "--", "x"], "gradwire: expected 2 to 10000 for --warm-up, got 0"),
        (["--latency", "9", "--", "x"], "gradwire: expected a time such as"),
        (["--try", "--continue", "--", "x"], "gradwire: expected --try or --continue, got both; omit one"),
        (["--try", "--rates", "1gbit", "--", "x"], "expected --try or --rates, got both"),
        (["--json", "/", "--", "x"], "gradwire: --json / is a folder; pass a file"),
        (["--json", "a", "--save", "a", "--", "x"], "two files for --json and --save, got a twice; change"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_a_page_that_is_there_already_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.html").write_text("mine")
    assert main(["profile", "--json", str(tmp_path / "x.json"), "--", "x"]) == 2
    assert "would also write the page" in capsys.readouterr().err
    assert (tmp_path / "x.html").read_text() == "mine"


def test_words_become_what_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradwire.profile import run as module

    found: list[Any] = []

    def profile(wanted: Any) -> int:
        found.append(wanted)
        return 7

    monkeypatch.setattr(module, "profile", profile)
    words = ["--rates", "1gbit, 10gbit", "--hosts", "2,4,2", "--continue", "--latency", "1ms"]
    path = tmp_path / "x.json"
    assert main(["profile", *words, "--json", str(path), "--", "torchrun", "--", "x.py"]) == 7
    (wanted,) = found
    assert wanted.command == ("torchrun", "--", "x.py")
    assert (wanted.rates, wanted.hosts, wanted.latency_s) == (("1gbit", "10gbit"), (2, 4), 1e-3)
    assert (wanted.goes_on, wanted.steps, wanted.warm_up, wanted.json) == (True, 10, 5, path)


def profiled(folder: Path, *options: str) -> CompletedProcess[str]:
    """Profile the script under torchrun."""
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run(
        [sys.executable, "-m", "gradwire", "profile", *options, "--", *torchrun, "train.py", "500"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.processes
def test_an_unmodified_script_under_torchrun_is_attached_and_measured(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--try", "--steps", "4", "--warm-up", "3")
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    (plain,) = [line for line in printed if line[:2] == ["plain", "DDP"]]
    (attached,) = [line for line in printed if line[:1] == ["attached"]]
    assert (plain[2], attached[1]) == ("4", "30")
    assert "gradwire chose " in " ".join(done.stdout.split())
    assert 40 <= done.stdout.count("step ") < 500, "the script is stopped when enough is measured"


@pytest.mark.processes
def test_an_unmodified_script_under_torchrun_is_profiled_and_stopped(tmp_path: Path) -> None:
    options = ["--steps", "4", "--warm-up", "3", "--json", "seen.json", "--rates", "10mbit"]
    done = profiled(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step ") >= 5, "the script prints as ever"
    assert "step 6\n" not in done.stdout, "and is stopped in its seventh step"
    assert "DDP on 2 ranks, 2 of them on this machine, 4 steps" in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert found["observed"]["counts"] == [300 * 200 + 200]
    here, slow = found["estimates"]
    assert 0 < here["plain_s"] < slow["plain_s"], "predicted on both networks"
    assert here["spread"] >= abs(here["plain_s"] / found["observed"]["step_s"] - 1) - 1e-9
    assert (slow["network"], slow["limit"]["name"]) == ("10mbit", "line")
    assert slow["speedup"] > 2
