import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.codecs import DEFAULT_CODEC
from gradwire.errors import GradwireError, JobError
from gradwire.plan import Plan
from gradwire_lab.job.data import load
from gradwire_lab.job.options import EPOCHS, PIPELINE, JobOptions, check, check_data, make_run, parse_runs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": "imagenet"}, "expected one of digits, mnist, fashion for --data, got 'imagenet'"),
        ({"model": "gpt"}, "expected one of mlp, hdc, wide, cnn for --model"),
        ({"workers": 0}, "expected --workers from 1 to 64, got 0"),
        ({"exchange": Plan(pipeline=17)}, "expected --pipeline from 1 to 16"),
        ({"epochs": 0}, "expected --epochs from 1 to "),
        ({"warmup_epochs": 9}, "expected --warmup-epochs from 0 to 8, got 9"),
        ({"batch": 0}, "expected --batch from 1 to "),
        ({"batch": 98}, "to be a multiple of the 4 workers, got 98; pass 100, the nearest multiple"),
        ({"batch": 97}, "pass 96, the nearest multiple"),
        ({"batch": 3}, "pass 4, the nearest multiple"),
        ({"batch": 1}, "pass 4, the nearest multiple"),
        ({"seed": -1}, "expected --seed from 0 to "),
        ({"max_steps": 0}, "expected --max-steps from 1 to "),
        ({"evaluate_every": 0}, "expected --evaluate-every from 1 to "),
        ({"schedule": "linear"}, "expected one of cosine, constant for --schedule, got 'linear'"),
        (
            {"runs": (make_run("ddp"),)},
            "--rate cannot throttle ddp:identity, which uses PyTorch.s own connections",
        ),
        ({"lr": 0.0}, "expected --lr above 0"),
        ({"lr": float("nan")}, "expected --lr above 0 and at most 1e[+]30, got nan"),
        ({"timeout_s": -1.0}, "expected --timeout from 1 to 86400, got -1"),
        ({"link": "999bit"}, "--rate: expected 1kbit to 1000gbit, or unlimited, got 999bit"),
        ({"link": "9" * 306 + "gbit"}, "expected a rate such as"),
        ({"link": "fast"}, "expected a rate such as"),
        (
            {"weights": "delta:fp32", "runs": (make_run("sync"),)},
            "expected the method server or sharded with --weights, got neither; omit --weights, or add one",
        ),
        (
            {"weights": "bf16", "runs": (make_run("sharded"), make_run("server"))},
            "expected one of delta:bf16, delta:fp32 for --weights of the method sharded, got 'bf16'",
        ),
        (
            {"weights": "delta", "runs": (make_run("server"),)},
            "expected one of delta:bf16, delta:fp32 for --weights as deltas, got 'delta'",
        ),
        ({"weights": "fp17", "runs": (make_run("server"),)}, "unknown codec 'fp17'"),
        (
            {"runs": (make_run("sync", "auto"),), "exchange": Plan(algorithm="star", pipeline=PIPELINE)},
            "expected no exchange options with auto, which chooses a plan .* omit --algorithm,",
        ),
        ({"runs": (make_run("pipe", "auto"),), "scale": "auto"}, "expected no exchange options with auto"),
        (
            {"runs": (make_run("sharded"),), "exchange": Plan(algorithm="star")},
            "a sharded exchange: expected algorithm='ring', one bucket, and a pipeline of 1, got",
        ),
    ],
)
def test_every_mistake_is_named(options: JobOptions, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(GradwireError, match=reason) as caught:
        check(replace(options, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "hierarchical:2,ring+star"])
def test_good_options_pass_and_leave_no_trace(options: JobOptions, algorithm: str) -> None:
    check(replace(options, exchange=Plan(algorithm=algorithm)))
    assert not options.out.exists()
    assert not list(options.out.parent.iterdir())


@pytest.mark.parametrize(
    ("runs", "weights", "exact"),
    [
        ("server,sharded", None, True),
        ("server,sharded", "delta:fp32", True),
        ("server@1,sharded:fp8", "delta:bf16", False),
        ("server", "bf16", False),
        ("server", "identity", True),
    ],
)
def test_weights_travel_as_the_methods_can(
    options: JobOptions, runs: str, weights: str | None, exact: bool
) -> None:
    options = replace(options, runs=parse_runs(runs), weights=weights)
    check(options)
    assert options.exact_weights is exact


def test_the_plan_of_a_run_says_whether_it_is_sharded(options: JobOptions) -> None:
    for exchange in (options.exchange, Plan(exchange="sharded", residual=True)):
        options = replace(options, exchange=exchange)
        sharded, sync = (options.plan(make_run(method, "fp8")) for method in ("sharded", "sync"))
        assert (sharded.exchange, sharded.pipeline) == ("sharded", 1)
        assert sync == replace(sharded, exchange="all_reduce")


def test_a_run_may_choose_its_plan(options: JobOptions) -> None:
    begins = {method: options.plan(make_run(method, "auto")) for method in ("attach", "sync", "pipe")}
    assert {str(each.codec) for each in begins.values()} == {DEFAULT_CODEC}
    assert [each.pipeline for each in begins.values()] == [1, 1, PIPELINE]
    assert isinstance(options.plan_or_auto(make_run("sync", "auto")), gradwire.Auto)
    fixed = make_run("sync", "bf16")
    assert options.plan_or_auto(fixed) == options.plan(fixed)


def test_a_folder_that_cannot_be_made_is_named(options: JobOptions, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"--out .*file/below cannot be written: .*Not a directory"):
        check(replace(options, out=tmp_path / "file" / "below"))


def test_missing_extras_are_named(options: JobOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name != "rich" else object())
    wanted = r"aren't installed: matplotlib, scikit-learn.*pip install './packages/gradwire-lab\[train\]'"
    with pytest.raises(JobError, match=wanted):
        check(options)
    with pytest.raises(JobError, match="needs packages that aren't installed: matplotlib"):
        check(replace(options, data="mnist"))


def test_a_batch_larger_than_the_data_is_named(options: JobOptions) -> None:
    with pytest.raises(JobError, match=r"--batch of at most the 1438 .*got 1440; pass at most 1436"):
        check_data(replace(options, batch=1440), load("digits"))


def test_steps_follow_from_epochs_batch_and_limit(options: JobOptions) -> None:
    data = load("digits")
    assert options.steps_per_epoch(data) == 14
    assert options.steps(data) == 14 * options.epochs
    assert replace(options, max_steps=5).steps(data) == 5


def test_a_server_is_one_process_more(options: JobOptions) -> None:
    assert (options.has_server, options.world) == (True, 5)
    assert replace(options, runs=(make_run("sync"),)).world == 4


def test_every_data_set_has_its_epochs() -> None:
    assert set(EPOCHS) == {"digits", "mnist", "fashion"}
