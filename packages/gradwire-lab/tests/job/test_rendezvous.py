"""Jobs that torchrun starts, and the ways in which their ranks do not find each other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli import main
from support.beds import needs_namespaces
from support.launched import launch
from support.project import TESTS


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


@needs_namespaces
@pytest.mark.processes
def test_from_another_network_nobody_reaches_the_store_of_a_local_job() -> None:
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-m", "support.two_networks"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["anybody's", "reached", "store", "refused", "own", "value"]


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(1, "rank 1 cannot reach rank 0 at 127.0.0.1:"), (0, "rank 0 of 2 could not join the other ranks")],
)
def test_nobody_there_is_one_sentence_within_the_timeout(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    port: int,
    rank: int,
    reason: str,
) -> None:
    launch(monkeypatch, rank, 2, port if rank else free_port())
    started = time.monotonic()
    assert main(["train", "--timeout", "1", "--out", str(tmp_path / "out")]) == 2
    assert time.monotonic() - started < 8
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"gradwire: {reason}")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_torchrun_starts_a_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runner = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    words = ["-m", "gradwire", "train", "--runs", "sync,pipe:quantize:8", "--epochs", "1", "--out", str(out)]
    done = subprocess.run(
        [*runner, str(free_port()), *words], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("D-Sync: step 14/14") == 1, "only rank 0 speaks"
    record = json.loads((out / "record.json").read_text())
    assert record["options"]["workers"] == 2
    assert [run["steps"] for run in record["runs"]] == [14, 14]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
