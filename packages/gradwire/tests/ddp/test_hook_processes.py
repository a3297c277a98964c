"""``gradwire.attach`` between processes: the oracle is DDP with its own all-reduce.

Many of these follow the ideas of PyTorch's tests of its hooks (``test_c10d_gloo``, ``test_c10d_common``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwire
from gradwire.codecs import DEFAULT_CODEC
from support import ddp_ranks
from support.sums import bits

RunProcesses = Callable[..., list[Any]]
WORLD = 3
LOSSY = "errbound:2^-10"

pytestmark = pytest.mark.processes


def agree(results: list[dict[str, torch.Tensor]], steps: int) -> None:
    """Assert that the ranks' weights are equal bit for bit, and close to those that DDP trained."""
    for result in results:
        assert torch.equal(bits(result["ours"]), bits(results[0]["ours"]))
        torch.testing.assert_close(result["ours"], result["plain"], rtol=1e-5, atol=1e-6)
        assert result["steps"] == steps


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default"),
        pytest.param({"gradient_as_bucket_view": True}, id="views"),
        pytest.param({"static_graph": True}, id="static"),
        pytest.param({"find_unused_parameters": True}, id="unused"),
    ],
)
def test_with_identity_training_equals_ddp_in_three_buckets(
    options: dict[str, Any], run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, ddp_ranks.dense, options, ddp_ranks.EXACT, 20)
    agree(results, steps=20)
    for result in results:
        assert result["buckets"] >= 3
        assert result["bypasses"] == 0


@pytest.mark.parametrize("algorithm", ["ring", "tree", "butterfly"])
def test_a_lossy_codec_stays_near_and_equal_on_all_ranks(algorithm: str, run_processes: RunProcesses) -> None:
    plan = gradwire.Plan(gradwire.parse("errbound:2^-16"), algorithm)
    results = run_processes(WORLD, ddp_ranks.dense, {}, plan, 10)
    for result in results:
        assert torch.equal(bits(result["ours"]), bits(results[0]["ours"]))
    # every sum errs by at most 3 encodings of 2^-16; ten steps with momentum 0.9 weigh a gradient with 10 lr
    error = (results[0]["ours"] - results[0]["plain"]).abs().max().item()
    assert 0 < error < 10 * 10 * 0.1 * 2**-16


def test_gradients_accumulate_under_no_sync(run_processes: RunProcesses) -> None:
    agree(run_processes(2, ddp_ranks.accumulated), steps=5)


@pytest.mark.parametrize(
    ("reentrant", "options"),
    [
        pytest.param(False, {}, id="non-reentrant"),
        pytest.param(True, {"static_graph": True}, id="reentrant-static"),
    ],
)
def test_activation_checkpointing(
    reentrant: bool, options: dict[str, Any], run_processes: RunProcesses
) -> None:
    agree(run_processes(2, ddp_ranks.checkpointed, reentrant, options), steps=4)


def test_parameters_that_some_or_all_ranks_leave_unused(run_processes: RunProcesses) -> None:
    for result in run_processes(WORLD, ddp_ranks.unused, {"find_unused_parameters": True}):
        assert [grad is None for grad in result["ours"]] == [False] * 6 + [True] * 2
        assert [grad is None for grad in result["plain"]] == [False] * 6 + [True] * 2
        for ours, plain in zip(result["ours"][:6], result["plain"][:6], strict=True):
            torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_averaged_in_float32_and_rounded_once(
    dtype: torch.dtype, run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, ddp_ranks.half, dtype, ddp_ranks.EXACT)
    for i, averaged in enumerate(results[0]["averaged"]):
        exact = torch.stack([result["local"][i].double() for result in results]).mean(0)
        half_ulp = torch.finfo(dtype).eps / 2 * exact.abs() + torch.finfo(dtype).smallest_normal
        assert averaged.dtype == dtype
        assert bool(((averaged.double() - exact).abs() <= 1.01 * half_ulp).all())
    for result in results:
        assert torch.equal(result["weights"][0], results[0]["weights"][0])
        assert result["bypasses"] == []


def test_other_dtypes_go_through_torch_and_are_counted(run_processes: RunProcesses) -> None:
    results = run_processes(2, ddp_ranks.half, torch.float64, None)
    for i, averaged in enumerate(results[0]["averaged"]):
        exact = torch.stack([result["local"][i] for result in results]).mean(0)
        torch.testing.assert_close(averaged, exact, rtol=1e-14, atol=1e-16)
    assert [bypass.count > 4 for bypass in results[0]["bypasses"]] == [True]


@pytest.mark.parametrize(
    ("backend", "outside"), [("eager", True), ("eager", False), ("aot_eager", True), ("aot_eager", False)]
)
def test_compiled_models(backend: str, outside: bool, run_processes: RunProcesses) -> None:
    results = run_processes(2, ddp_ranks.compiled, backend, outside, timeout_s=100)
    agree(results, steps=4)
    assert results[0]["buckets"] >= 2


def test_several_models_in_one_backward_pass(run_processes: RunProcesses) -> None:
    results = run_processes(2, ddp_ranks.two_models)
    for plain, ours in results:
        for name in plain:
            torch.testing.assert_close(ours[name], plain[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(bits(ours[name]), bits(results[0][1][name]))


def test_a_model_on_a_part_of_the_ranks(run_processes: RunProcesses) -> None:
    first, nobody, second = run_processes(WORLD, ddp_ranks.subgroup, [0, 2])
    assert nobody is None
    agree([first, second], steps=4)


@pytest.mark.parametrize(
    ("options", "by_all", "dtype"),
    [
        pytest.param({}, True, torch.float32, id="all"),
        pytest.param({}, False, torch.float32, id="active"),
        pytest.param({}, False, torch.float64, id="active-bypassed"),
        pytest.param({"static_graph": True}, False, torch.float32, id="active-static"),
        pytest.param({"find_unused_parameters": True}, False, torch.float32, id="active-unused"),
    ],
)
def test_ranks_with_uneven_batches_join(
    options: dict[str, Any], by_all: bool, dtype: torch.dtype, run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, ddp_ranks.uneven, options, by_all, dtype)
    for plain, ours in results:
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
        assert torch.equal(bits(ours), bits(results[0][1]))


def test_ranks_that_loaded_other_weights_are_named_now_or_in_the_next_step(
    run_processes: RunProcesses,
) -> None:
    for said in run_processes(WORLD, ddp_ranks.loaded_apart):
        assert len(said) == 2
        for each in said:
            assert each.startswith(
                "StateError: expected bit-identical replicas, but the weights of rank 1 differ"
            )


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(gradwire.Plan(gradwire.parse("topk:0.05")), id="topk"),
        pytest.param(gradwire.Plan(gradwire.parse("errbound:2^-4"), "tree", residual=True), id="errbound"),
    ],
)
def test_residuals_outlive_new_buckets_and_a_restart(
    plan: gradwire.Plan, run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, ddp_ranks.residuals, plan, 8)
    into, left = (sum(result[name] for result in results) for name in ("into", "left"))
    out = WORLD * results[0]["out"]
    assert all(cut >= 3 for cut in results[0]["cuts"].tolist())  # one bucket at first, then several
    lost = (into - out).abs().max().item()
    assert lost > 1e-4
    torch.testing.assert_close(out + left, into, rtol=0.0, atol=1e-3 * lost)


def test_the_same_gradients_as_torch_s_own_hooks(run_processes: RunProcesses) -> None:
    results = run_processes(2, ddp_ranks.builtin_hooks)
    for found in results:
        for exact, hooked, identity in zip(found["none"], found["allreduce"], found["identity"], strict=True):
            torch.testing.assert_close(hooked, exact)
            torch.testing.assert_close(identity, exact)
        for name in ("fp16", "builtin fp16", "codec fp16"):
            for exact, rounded in zip(found["none"], found[name], strict=True):
                # shares of both signs cancel, so what rounding them costs is relative to the largest ones
                once = 2**-11 * exact.abs().max().item()
                torch.testing.assert_close(rounded, exact, rtol=0.0, atol=3 * once)


def test_known_gradients_average_to_a_known_number(run_processes: RunProcesses) -> None:
    for lows, highs in run_processes(WORLD, ddp_ranks.known_average):
        assert lows == highs == [2.0] * 4  # (1 + 2 + 3) / 3


@pytest.mark.parametrize(
    ("plans", "kinds", "words"),
    [
        pytest.param(
            [None, "identity", None],
            ["AttachError"] * 3,
            [
                f"codec is {DEFAULT_CODEC} on ranks 0, 2, identity on rank 1",
                "use the same plan and version of gradwire",
            ],
            id="codecs",
        ),
        pytest.param(
            [gradwire.Plan(), gradwire.Plan(), gradwire.Plan(algorithm="tree", segment_nbytes=1 << 20)],
            ["AttachError"] * 3,
            ["algorithm is ring on ranks 0, 1, tree on rank 2", "segment_nbytes is 4194304 on ranks 0, 1"],
            id="several-parts",
        ),
        pytest.param(
            [None, "no/such/plan.json", None],
            ["AttachError", "SpecError", "AttachError"],
            ["the plan no/such/plan.json cannot be read: No such file or directory"],
            id="refusal",
        ),
    ],
)
def test_ranks_that_differ_are_named_on_all_of_them(
    plans: list[Any], kinds: list[str], words: list[str], run_processes: RunProcesses
) -> None:
    errors = run_processes(WORLD, ddp_ranks.attach_with, plans)
    assert [kind for kind, _ in errors] == kinds
    for _, text in errors:
        assert all(word in text for word in words), text


def test_a_rank_that_does_not_attach_is_not_waited_for_forever(run_processes: RunProcesses) -> None:
    first, absent, last = run_processes(WORLD, ddp_ranks.attach_with, [None, "absent", None], 1.5)
    assert absent is None
    for kind, text in (first, last):
        assert kind == "AttachError"
        assert "3 ranks of the model's group to attach within 1.5 s, got nothing from rank 1" in text


BACKEND = gradwire.Plan(algorithm="backend")
"""From the fifth step on, the transport takes all buckets."""


@pytest.mark.parametrize(
    ("how", "options", "bad_step", "plan"),
    [
        pytest.param("dies", {}, 3, LOSSY, id="dies"),
        pytest.param("stands still", {}, 3, LOSSY, id="stands-still"),
        pytest.param("dies", {"static_graph": True}, 0, LOSSY, id="dies-in-a-static-graph-s-first-step"),
        pytest.param("dies", {"find_unused_parameters": True}, 2, LOSSY, id="dies-with-unused-parameters"),
        pytest.param("dies", {"gradient_as_bucket_view": True}, 1, LOSSY, id="dies-with-views"),
        pytest.param("dies", {}, 7, BACKEND, id="dies-within-the-transport"),
        pytest.param("dies", {"static_graph": True}, 6, BACKEND, id="dies-within-it-in-a-static-graph"),
        pytest.param("dies", {"gradient_as_bucket_view": True}, 5, BACKEND, id="dies-within-it-with-views"),
    ],
)
def test_a_lost_peer_is_an_error_on_the_others_and_weights_stay(
    how: str, options: dict[str, Any], bad_step: int, plan: Any, run_processes: RunProcesses
) -> None:
    for result in run_processes(WORLD, ddp_ranks.lose_a_peer, how, options, bad_step, plan, absent=[2])[:2]:
        (kind, text, took_s), *later = result["errors"]
        assert kind == "ExchangeError", text
        assert "rank" in text
        assert took_s < 15  # the timeout is 2 s; processes share few cores
        assert len(later) == 2
        for again, reason, at_once_s in later:
            assert again == "ExchangeError"
            assert "failed earlier" in reason
            assert at_once_s < 1.9
        assert result["same weights"]
        assert result["same state"]
        assert result["evaluated"]
