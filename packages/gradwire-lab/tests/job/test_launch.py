"""Jobs in processes of this machine: they end well, or with one sentence and nothing left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.autotune.settings import DEFAULT
from gradwire.cli import main
from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.errors import JobError
from gradwire.plan import Plan
from gradwire_lab.job.launch import perform_local
from gradwire_lab.job.options import JobOptions, make_run, parse_runs
from gradwire_lab.job.record import EpochDone, Progress, RunResult, RunStarted, StepDone
from support.processes import children
from support.told_line import WARM_UP

pytestmark = pytest.mark.processes

PARAMETERS = 64 * 500 + 500 + 500 * 500 + 500 + 500 * 10 + 10
HEADER_NBYTES = 32


@pytest.fixture
def small(tmp_path: Path) -> JobOptions:
    return JobOptions(
        runs=(make_run("sync"),), out=tmp_path / "out", workers=2, epochs=1, max_steps=6, timeout_s=30
    )


def test_a_comparison_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs" / "demo"
    words = ["train", "--compare", "--workers", "2", "--epochs", "2", "--lr", "0.1", "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"record and plot are in {out}" in printed.out
    assert sorted(path.name for path in out.iterdir()) == ["record.json", "report.html", "training.png"]
    runs = {run["run"]: run for run in json.loads((out / "record.json").read_text())["runs"]}
    assert list(runs) == [
        "server:identity",
        "sync:identity",
        f"sync:{DEFAULT_CODEC}",
        f"pipe:{DEFAULT_CODEC}",
    ]
    for run in runs.values():
        assert run["steps"] == 28
        assert run["accuracy"] > 0.5, "chance is 0.1"
        assert [epoch["epoch"] for epoch in run["epochs"]] == [1, 2]
        split_s = run["compute_s_per_step"] + run["codec_s_per_step"] + run["exposed_s_per_step"]
        assert 0.5 * run["step_s"] < split_s < 1.2 * run["step_s"]
    ratio = 4 * (1 << 20) / parse(DEFAULT_CODEC).max_nbytes(1 << 20)
    assert runs[f"sync:{DEFAULT_CODEC}"]["ratio"] == pytest.approx(ratio, rel=0.02)
    assert runs["server:identity"]["accuracy"] == pytest.approx(runs["sync:identity"]["accuracy"], abs=0.02)
    assert not children()


def test_runs_that_choose_their_plan_say_what_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--runs", "attach:auto,pipe:auto", "--workers", "2", "--max-steps", "170"]
    assert main([*words, "--verbose", "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for run in json.loads((tmp_path / "out" / "record.json").read_text())["runs"]:
        first, *_ = run["decided"]
        assert WARM_UP < first["step"] <= WARM_UP + 1 + DEFAULT.most_paced_steps
        for decided in run["decided"]:
            assert f"{run['label']}: from step {decided['step']} on, {decided['reason']}" in said
        assert run["plan"]["codec"] == DEFAULT_CODEC, "what it begins with"


def test_bytes_are_those_of_the_closed_forms(small: JobOptions) -> None:
    results = perform_local(replace(small, runs=parse_runs("server,sync,pipe")), ignore)
    n = 4 * PARAMETERS
    for result, floats in zip(results, (2 * 2 * n, 2 * 1 * n, 2 * 1 * n), strict=True):
        assert result.raw_nbytes == 6 * floats
        headers = result.wire_nbytes - result.raw_nbytes
        assert 0 < headers < 6 * 16 * HEADER_NBYTES
        assert headers % HEADER_NBYTES == 0


def test_the_same_seed_gives_the_same_weights_and_another_other_ones(small: JobOptions) -> None:
    def weights(seed: int) -> str:
        return perform_local(replace(small, max_steps=2, seed=seed), ignore)[0].weights_sha256

    assert weights(1) == weights(1)
    assert weights(1) != weights(2)


def test_a_pipeline_of_one_is_synchronous_bit_for_bit(small: JobOptions) -> None:
    runs = parse_runs("sync:quantize:8,pipe:quantize:8")
    sync, pipe = perform_local(replace(small, runs=runs, exchange=Plan(pipeline=1)), ignore)
    assert pipe.weights_sha256 == sync.weights_sha256


def test_a_pipeline_that_only_warms_up_is_synchronous(small: JobOptions) -> None:
    sync, pipe = perform_local(replace(small, runs=parse_runs("sync,pipe"), warmup_epochs=1), ignore)
    assert sync.weights_sha256 == pipe.weights_sha256
    (stale,) = perform_local(replace(small, runs=parse_runs("pipe")), ignore)
    assert stale.weights_sha256 != sync.weights_sha256


def test_ddp_and_gradwire_on_it_without_a_codec_are_d_sync_bit_for_bit(small: JobOptions) -> None:
    runs = parse_runs("sync,ddp,attach,bf16-hook")
    sync, ddp, attached, halved = perform_local(replace(small, runs=runs, evaluate_every=2), ignore)
    assert ddp.weights_sha256 == attached.weights_sha256 == sync.weights_sha256
    assert halved.weights_sha256 != sync.weights_sha256
    assert ddp.raw_nbytes == ddp.wire_nbytes == 2 * halved.wire_nbytes == sync.raw_nbytes
    assert attached.raw_nbytes == sync.raw_nbytes < attached.wire_nbytes < 1.01 * sync.raw_nbytes
    for result in (ddp, attached, halved):
        assert [(epoch.epoch, epoch.step) for epoch in result.epochs] == [(1, 2), (1, 4), (1, 6)]
        parts_s = result.compute_s + result.codec_s + result.exposed_s
        assert 0.5 * result.step_s < parts_s < 1.2 * result.step_s
    assert [epoch.held_out_loss for epoch in ddp.epochs] == [epoch.held_out_loss for epoch in sync.epochs]


@pytest.mark.parametrize("run", ["ddp", "attach:fp8"])
def test_a_rank_that_stops_under_ddp_is_one_sentence(small: JobOptions, run: str) -> None:
    options = replace(small, runs=parse_runs(run), epochs=1000, max_steps=None, timeout_s=2)
    options = replace(options, evaluate_every=10_000)
    with pytest.raises(JobError, match=r"rank 0 \(a worker\) failed \(.*, step \d+\): "):
        perform_local(options, on(StepDone, lambda: send_to_rank(1, signal.SIGSTOP)))
    assert not children()


def test_buckets_change_neither_the_weights_nor_the_bytes_of_two_workers(small: JobOptions) -> None:
    options = replace(small, runs=parse_runs("sync,pipe"))
    whole = perform_local(options, ignore)
    in_buckets = perform_local(replace(options, exchange=Plan(pipeline=2, bucket_nbytes=400_000)), ignore)
    for result, cut in zip(whole, in_buckets, strict=True):
        assert cut.weights_sha256 == result.weights_sha256
        assert cut.raw_nbytes == result.raw_nbytes
        assert cut.wire_nbytes - result.wire_nbytes == 6 * 2 * 2 * 2 * HEADER_NBYTES, "two buckets more"


@pytest.mark.parametrize(("pipeline", "method"), [(1, "sync"), (2, "pipe")])
def test_a_plan_is_followed_and_kept(tmp_path: Path, pipeline: int, method: str) -> None:
    plan = Plan(parse("quantize:8"), "star", 1 << 16, pipeline, bucket_nbytes=500_000, residual=True)
    plan.save(tmp_path / "plan.json")
    words = ["train", "--plan", str(tmp_path / "plan.json"), "--workers", "2", "--epochs", "1"]
    assert main([*words, "--max-steps", "3", "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    (run,) = record["runs"]
    assert run["run"] == f"{method}:quantize:8"
    assert Plan.from_json(json.dumps(run["plan"])) == plan
    assert record["options"]["bucket_nbytes"] == 500_000


def test_a_sharded_plan_is_followed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(parse("quantize:8"), residual=True, exchange="sharded")
    plan.save(tmp_path / "plan.json")
    words = ["train", "--plan", str(tmp_path / "plan.json"), "--workers", "2", "--epochs", "1"]
    assert main([*words, "--max-steps", "3", "--out", str(tmp_path / "out")]) == 0
    assert "Sharded + quantize:8" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    (run,) = record["runs"]
    assert run["run"] == "sharded:quantize:8"
    assert Plan.from_json(json.dumps(run["plan"])) == plan
    assert record["options"]["weights"] is None


def test_sharded_ranks_with_exact_weights_train_as_d_sync(small: JobOptions) -> None:
    runs = parse_runs("sync,sharded,sharded:quantize:8")
    sync, exact, coded = perform_local(replace(small, runs=runs, weights="delta:fp32"), ignore)
    assert exact.epochs[-1].held_out_loss == pytest.approx(sync.epochs[-1].held_out_loss, rel=1e-4)
    assert coded.wire_nbytes < exact.wire_nbytes < sync.wire_nbytes
    (rounded,) = perform_local(replace(small, runs=parse_runs("sharded:quantize:8")), ignore)
    assert rounded.wire_nbytes < coded.wire_nbytes


def test_weights_that_come_down_as_deltas_are_the_servers(small: JobOptions) -> None:
    runs = parse_runs("server,server@0")
    plain = perform_local(replace(small, runs=runs), ignore)
    deltas = perform_local(replace(small, runs=runs, weights="delta:fp32"), ignore)
    for whole, delta in zip(plain, deltas, strict=True):
        assert delta.weights_sha256 == whole.weights_sha256
        assert delta.raw_nbytes == whole.raw_nbytes
        assert delta.wire_nbytes < whole.wire_nbytes
    rounded = perform_local(replace(small, runs=runs, weights="delta:bf16"), ignore)
    for delta, half in zip(deltas, rounded, strict=True):
        assert half.wire_nbytes < delta.wire_nbytes
        assert half.weights_sha256 != delta.weights_sha256


def test_a_run_that_diverges_says_so_once_and_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "--method",
        "sync",
        "--codec",
        "identity",
        "--workers",
        "1",
        "--epochs",
        "2",
        "--lr",
        "1e30",
    ]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("D-Sync: the loss is no longer finite in epoch 1") == 1
    assert printed.count("no longer finite") == 1
    (run,) = json.loads((tmp_path / "out" / "record.json").read_text())["runs"]
    assert run["diverged"] is True


def test_staleness_0_is_ps_sync_bit_for_bit_and_more_is_not(small: JobOptions) -> None:
    runs = parse_runs("server,server@0,server@2,server@2:quantize:8")
    sync, level, stale, coded = perform_local(replace(small, runs=runs), ignore)
    assert level.weights_sha256 == sync.weights_sha256
    assert stale.weights_sha256 != sync.weights_sha256
    assert level.raw_nbytes == sync.raw_nbytes
    assert coded.raw_nbytes / coded.wire_nbytes == pytest.approx(2 / (1 + 1 / 4), rel=0.1)


def test_a_stale_server_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["train", "--method", "server", "--staleness", "2", "--workers", "3", "--batch", "90"]
    assert main([*words, "--epochs", "3", "--lr", "0.1", "--out", str(out)]) == 0
    assert "SSP 2" in capsys.readouterr().out
    (run,) = json.loads((out / "record.json").read_text())["runs"]
    assert (run["run"], run["label"], run["steps"]) == ("server@2:identity", "SSP 2", 3 * 15)
    assert run["accuracy"] > 0.5, "chance is 0.1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--staleness", "2"], "expected the method server with a staleness, got pipe; omit"),
        (["--method", "sync", "--staleness", "0"], "expected the method server with a staleness"),
        (["--method", "server", "--staleness", "-1"], "expected a staleness from 0 to 1000, got -1"),
        (["--compare", "--staleness", "2"], "omit --staleness, and write --runs server@2,sync"),
        (["--runs", "server", "--staleness", "0"], "omit --staleness, and write --runs server@2,sync"),
        (["--plan", "plan.json", "--staleness", "2"], "omit --staleness"),
    ],
)
def test_a_staleness_that_cannot_be_is_named(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert reason in capsys.readouterr().err


def test_one_worker_alone_trains(small: JobOptions) -> None:
    (result,) = perform_local(replace(small, workers=1), ignore)
    assert (result.raw_nbytes, result.steps) == (0, 6)


@pytest.mark.parametrize("run", ["sync", "sharded:fp8", "server", "server@2"])
def test_a_killed_worker_is_named_and_the_others_end(small: JobOptions, run: str) -> None:
    options = replace(small, runs=parse_runs(run), epochs=100, max_steps=None)
    with pytest.raises(
        JobError, match=r"rank 1 \(a worker\) was killed by SIGKILL during (D-Sync|Sharded|PS-Sync|SSP)"
    ):
        perform_local(options, on(EpochDone, lambda: send_to_rank(1, signal.SIGKILL)))
    assert not children()


def test_a_stopped_worker_ends_the_job_within_the_timeout(small: JobOptions) -> None:
    options = replace(small, epochs=100, max_steps=None, timeout_s=2, link="50mbit")
    started = time.monotonic()
    with pytest.raises(JobError, match=r"rank 0 \(a worker\) failed \(D-Sync, step \d+\): .*rank 1"):
        perform_local(options, on(StepDone, lambda: send_to_rank(1, signal.SIGSTOP)))
    assert time.monotonic() - started < 30
    assert not children()


def test_an_error_of_a_worker_is_one_sentence(small: JobOptions) -> None:
    with pytest.raises(JobError, match=r"rank [01] \(a worker\) failed \(starting\): expected one of eager"):
        perform_local(replace(small, runs=(make_run("pipe"),), correction="some"), ignore)


def test_a_bug_in_a_worker_shows_its_traceback(small: JobOptions) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'none'"):
        perform_local(replace(small, model="none"), ignore)
    assert not children()


def test_nothing_is_written_by_a_job_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> tuple[RunResult, ...]:
        raise JobError("rank 1 (a worker) was killed")

    monkeypatch.setattr("gradwire_lab.job.job.perform_local", fail)
    assert main(["train", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "gradwire: rank 1 (a worker) was killed\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "whole_terminal", "code", "said"),
    [(signal.SIGINT, True, 130, "gradwire: interrupted\n"), (signal.SIGKILL, False, -9, "")],
)
def test_however_the_parent_ends_no_process_stays(
    tmp_path: Path, number: int, whole_terminal: bool, code: int, said: str
) -> None:
    words = [
        "train",
        "--method",
        "sync",
        "--workers",
        "2",
        "--epochs",
        "9999",
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwire", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while "D-Sync" not in process.stdout.readline():
        assert process.poll() is None, "it ended before its first step"
    assert len(session_of(process.pid)) >= 3
    if whole_terminal:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, said)
    deadline = time.monotonic() + 20
    while (left := session_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_obeyed(small: JobOptions, number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        perform_local(small, on(RunStarted, lambda: os.kill(os.getpid(), number)))
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) == before
    assert not children()


def ignore(event: Progress) -> None:
    assert isinstance(event, Progress)


def on(kind: type[Progress], act: Callable[[], None]) -> Callable[[Progress], None]:
    """Return what acts once, at the first event of a kind."""
    acted: list[Progress] = []

    def show(event: Progress) -> None:
        if isinstance(event, kind) and not acted:
            acted.append(event)
            act()

    return show


def send_to_rank(rank: int, number: int) -> None:
    (process,) = [child for child in children() if child.name == f"gradwire rank {rank}"]
    assert process.pid is not None
    os.kill(process.pid, number)


def session_of(leader: int) -> list[int]:
    """Return the processes of a session that still run (a zombie does not)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, _, session = folder.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == leader and state != "Z":
                found.append(int(folder.name))
    return found
