"""The words of ``gradwire train`` and the options that they become."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.errors import GradwireError, JobError, SpecError
from gradwire.launch.launched import VARIABLES
from gradwire.plan import Plan
from gradwire_lab.cli.train import read
from gradwire_lab.job.options import EPOCHS, JobOptions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in (*VARIABLES, "GRADWIRE_TESTBED"):
        monkeypatch.delenv(variable, raising=False)


def test_without_a_word_everything_is_the_default() -> None:
    options = read([])
    assert re.fullmatch(rf"runs/digits-{datetime.now():%Y}\d{{4}}-\d{{6}}", str(options.out))
    assert options == JobOptions(runs=options.runs, out=options.out, epochs=EPOCHS["digits"])
    assert [str(run) for run in options.runs] == ["pipe:auto"]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("--method sync", "sync:auto"),
        ("--method server", "server:identity"),
        ("--algorithm tree", "pipe:identity"),
        ("--method sync --segment 64KiB", "sync:identity"),
        ("--compare", f"server:identity sync:identity sync:{DEFAULT_CODEC} pipe:{DEFAULT_CODEC}"),
        ("--compare ddp", "ddp:identity bf16-hook:identity attach:auto pipe:auto"),
        (
            "--compare ddp --algorithm tree",
            f"ddp:identity bf16-hook:identity attach:{DEFAULT_CODEC} pipe:{DEFAULT_CODEC}",
        ),
        (
            "--compare ddp --codec quantize:8",
            "ddp:identity bf16-hook:identity attach:quantize:8 pipe:quantize:8",
        ),
    ],
)
def test_a_run_chooses_how_it_exchanges_unless_that_is_said(words: str, runs: str) -> None:
    assert [str(run) for run in read(words.split()).runs] == runs.split()


def test_every_word_reaches_its_option() -> None:
    words = (
        "--method pipe --codec fp8 --data mnist --data-dir images --model cnn --epochs 3 --max-steps 7 "
        "--evaluate-every 2 --batch 60 --lr 0.5 --schedule constant --pipeline 3 --correction none "
        "--warmup-epochs 1 --seed 9 --workers 6 --rate 10mbit --algorithm tree --segment 64KiB --bucket 4MB "
        "--timeout 5 --out there --overwrite"
    )
    options = read(words.split())
    assert [str(run) for run in options.runs] == ["pipe:fp8"]
    exchange = Plan(algorithm="tree", segment_nbytes=1 << 16, pipeline=3, bucket_nbytes=4_000_000)
    assert options == JobOptions(
        runs=options.runs,
        out=Path("there"),
        data="mnist",
        data_folder=Path("images"),
        model="cnn",
        exchange=exchange,
        workers=6,
        link="10mbit",
        correction="none",
        warmup_epochs=1,
        epochs=3,
        max_steps=7,
        evaluate_every=2,
        batch=60,
        lr=0.5,
        schedule="constant",
        seed=9,
        timeout_s=5.0,
        overwrite=True,
    )


@pytest.mark.parametrize(("pipeline", "method"), [(1, "sync"), (2, "pipe")])
def test_a_plan_says_method_codec_and_exchange(pipeline: int, method: str) -> None:
    plan = Plan(parse("quantize:8"), "star", 1 << 15, pipeline, residual=True)
    plan.save("plan.json")
    options = read(["--plan", "plan.json"])
    assert [str(run) for run in options.runs] == [f"{method}:quantize:8"]
    assert options.plan(options.runs[0]) == plan


@pytest.mark.parametrize("scale", [None, "auto"])
def test_what_nics_do_and_the_scale_reach_the_plans_of_all_runs(scale: str | None) -> None:
    words = ["--runs", "sync,attach,server", "--offload", "inceptionn:2^-10"]
    options = read(words if scale is None else [*words, "--scale", scale])
    plans = [options.plan(run) for run in options.runs]
    assert [(plan.offload, plan.scale) for plan in plans] == [(parse("inceptionn:2^-10"), scale)] * 3
    for plan in plans:
        plan.save("plan.json")
        again = read(["--plan", "plan.json"])
        assert again.plan(again.runs[0]) == plan


def test_a_scale_is_for_runs_with_a_codec() -> None:
    options = read(["--runs", "ddp,sync,pipe:errbound:2^-10", "--scale", "auto"])
    assert [options.plan(run).scale for run in options.runs] == [None, None, "auto"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--plan plan.json --offload truncate:16 --scale auto", "omit --offload and --scale"),
        ("--offload quantize:8", "expected a codec that NICs can apply, got quantize:8"),
        ("--offload truncate:16 --codec fp8", "because NICs encode, got fp8; omit codec or offload"),
        ("--offload truncate:16 --rate 1gbit", "expected --rate or --offload, got both; omit one"),
        ("--codec fp8 --scale auto", "got fp8; omit scale"),
        ("--plan plan.json --codec fp8 --pipeline 2", "omit --codec and --pipeline"),
        ("--plan long.json", "a pipeline of at most 16 steps, got 17 in long.json"),
        ("--compare --method sync", "expected --compare or --method, got both"),
        ("--runs sync --codec fp8", "expected --runs without --compare, --method, and --codec"),
        ("--compare --staleness 1", "omit --staleness, and write --runs server@2,sync"),
        ("--segment 5", "expected a whole number from 16384 to"),
        ("--pipeline 0", "expected a whole number from 1 to"),
        (
            "--method sharded --pipeline 3",
            "expected the method pipe with --pipeline, got sharded; omit",
        ),
        (
            "--runs sync,attach:fp8,sync:fp8 --pipeline 2",
            "got sync and attach; omit --pipeline",
        ),
        ("--bucket 2", "expected a whole number from 4 to"),
    ],
)
def test_words_that_contradict_each_other_are_told(words: str, reason: str) -> None:
    Plan().save("plan.json")
    Plan(pipeline=17).save("long.json")
    with pytest.raises((SpecError, JobError), match=reason):
        read(words.split())


def test_ranks_of_a_launcher_are_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("0", "3", "127.0.0.1"), strict=True):
        monkeypatch.setenv(name, value)
    assert read(["--batch", "90"]).workers == 3
    assert read(["--runs", "server,sync", "--batch", "90"]).workers == 2, "the third is the server"
    with pytest.raises(GradwireError, match="expected processes for 4 workers, got 3"):
        read(["--workers", "4"])
