"""Jobs that torchrun starts, and the ways in which ranks do not find each other."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.cli import main
from gradwire.errors import JobError
from gradwire.launch.rendezvous import check_same_options, join_launched, join_store, open_store
from support.beds import needs_namespaces
from support.launched import launch
from support.project import TESTS


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_a_local_store_needs_no_file() -> None:
    host = open_store(5)
    join_store(host.port, 5).set("key", "value")
    assert host.get("key") == b"value"


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


def test_ranks_with_other_options_are_refused() -> None:
    store = HashStore()
    check_same_options(store, 0, {"lr": 0.03, "workers": 4})
    check_same_options(store, 1, {"lr": 0.03, "workers": 4})
    with pytest.raises(JobError, match=r"the same options, but lr is 0\.5 on rank 1 and 0\.03 on rank 0"):
        check_same_options(store, 1, {"lr": 0.5, "workers": 4})


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(1, "rank 1 cannot reach rank 0 at 127.0.0.1:"), (0, "rank 0 of 2 could not meet the others")],
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


def test_a_stranger_at_the_port_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.launch.rendezvous.SLACK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        launch(monkeypatch, 1, 2, stranger.getsockname()[1])
        started = time.monotonic()
        with pytest.raises(JobError, match=r"rank 1 of 2 could not meet .* did not answer within 1 s; check"):
            join_launched(1)
        assert time.monotonic() - started < 8


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("MASTER_ADDR", "no.such.host.invalid", "MASTER_ADDR must be .* 'no.such.host.invalid' is not known"),
        ("MASTER_ADDR", "x" * 70 + ".org", "MASTER_ADDR must be rank 0's address or name"),
        ("MASTER_PORT", "99999", "MASTER_PORT must be 1 to 65535, but is 99999"),
        ("MASTER_PORT", "0", "MASTER_PORT must be 1 to 65535, but is 0"),
    ],
)
def test_an_address_that_nobody_has_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, rank: int, variable: str, value: str, reason: str
) -> None:
    launch(monkeypatch, rank, 2)
    monkeypatch.setenv(variable, value)
    with pytest.raises(JobError, match=reason):
        join_launched(1)


def test_a_port_that_is_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        launch(monkeypatch, 0, 2, stranger.getsockname()[1])
        with pytest.raises(JobError, match=r"^rank 0 cannot listen at 127\.0\.0\.1:\d+, where another"):
            join_launched(1)


@pytest.mark.processes
def test_torchrun_starts_a_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runner = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    words = ["-m", "gradwire", "train", "--runs", "sync,pipe:quantize:8", "--epochs", "1", "--out", str(out)]
    done = subprocess.run(
        [*runner, str(free_port()), *words], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("D-Sync: epoch 1/1") == 1, "only rank 0 speaks"
    record = json.loads((out / "record.json").read_text())
    assert record["options"]["workers"] == 2
    assert [run["steps"] for run in record["runs"]] == [14, 14]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
