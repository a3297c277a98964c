"""Training methods measure what encoding loses, warn where it is too much, and stop together if asked to."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, Ledger
from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.errors import LossyError, LossyWarning
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.encoding_error import EncodingErrorMeter
from gradwire.sync.context import SyncContext
from gradwire.sync.layout import Layout
from support.ledgers import Kept

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
Shares = dict[int, dict[str, float | None]]
KILLS = "errbound:2^2"


def by_hand(model: nn.Module, compute_loss: Callable[[], torch.Tensor], spec: str) -> dict[str, float]:
    """Return the share of every parameter that a rank loses which encodes its own gradient alone."""
    codec = parse(spec)
    gradients = torch.autograd.grad(compute_loss(), list(model.parameters()))
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    decoded = torch.empty_like(flat)
    codec.decode(codec.encode(flat), decoded)
    counts = [gradient.numel() for gradient in gradients]
    parts = zip(torch.split(flat, counts), torch.split(decoded, counts), strict=True)
    shares = [float((own - got).double().norm() / own.double().norm()) for own, got in parts]
    return dict(zip((name for name, _ in model.named_parameters()), shares, strict=True))


def shares_of(sink: Kept) -> Shares:
    return {step.step: dict(step.lost.parameters) for step in sink.steps if step.lost}


def check_shares(found: Shares, wanted: dict[str, float], plan: Plan, steps: list[int]) -> None:
    """Check what was lost in the sampled steps; residuals are 0 at first, and no part of the own."""
    assert list(found) == steps
    assert found[steps[0]] == pytest.approx(wanted, rel=1e-4)
    if plan.keeps_residual:
        assert found[2] != pytest.approx(found[1], rel=1e-4), "a residual goes out, and is lost in part again"


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (Plan(parse("errbound:2^-6"), "star"), [2, 4]),
        (Plan(parse("errbound:2^-6"), "star", bucket_nbytes=100), [2, 4]),
        (Plan(parse("quantize:4"), "star"), [1, 2, 3, 4, 5]),
    ],
)
def test_shares_are_those_by_hand(
    plan: Plan, steps: list[int], run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    """Rank 1 of a star encodes its own gradient."""

    def body(exchange: Exchange) -> tuple[Shares, dict[str, float]]:
        rank, model, sink = exchange.link.rank, make_model(), Kept()
        ledger, optimizer = Ledger(rank, [sink]), torch.optim.SGD(model.parameters(), lr=0.0)
        loss = batch_loss(model, 0, slice(rank, rank + 1))
        wanted = by_hand(model, loss, str(plan.codec))
        with DSync(model, optimizer, exchange.plan, ledger=ledger, group=exchange.link) as method:
            for _ in range(5):
                method.step(loss)
        return shares_of(sink), wanted

    _, (found, wanted) = run_exchanges(2, body, plan)
    check_shares(found, wanted, plan, steps)


def trained(
    exchange: Exchange,
    model: nn.Module,
    losses: Callable[[int], Callable[[], torch.Tensor]],
    steps: int = 20,
    strict: bool = False,
    groups: bool = False,
) -> tuple[Ledger, dict[int, str]]:
    """Return the ledger, and errors by step, of a training in which no rank changes its weights."""
    ledger, errors = Ledger(exchange.link.rank), {}
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(
        [{"params": parameters[:2]}, {"params": parameters[2:]}] if groups else parameters, lr=0.0
    )
    with DSync(model, optimizer, exchange.plan, ledger=ledger, strict=strict, group=exchange.link) as method:
        for step in range(1, steps + 1):
            try:
                method.step(losses(step))
            except LossyError as error:
                errors[step] = str(error)
    return ledger, errors


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("bucket_nbytes", [None, 100])
def test_each_group_of_parameters_is_told_of_once(
    bucket_nbytes: int | None,
    groups: bool,
    make_model: MakeModel,
    batch_loss: BatchLoss,
    run_exchanges: Ranks,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(exchange: Exchange) -> tuple[Ledger, dict[int, str]]:
        model, rank = make_model(), exchange.link.rank
        return trained(exchange, model, lambda _: batch_loss(model, 0, slice(rank, rank + 1)), groups=groups)

    plan = Plan(parse(KILLS), "star", bucket_nbytes=bucket_nbytes)
    with caplog.at_level(logging.WARNING, "gradwire"), pytest.warns(LossyWarning) as caught:
        (_, (ledger, _)) = run_exchanges(2, body, plan)
    own = [str(each.message) for each in caught if str(each.message).startswith("rank 1: ")]
    assert len(own) == 1 + groups
    assert own[0].startswith(f"rank 1: {KILLS} loses 100.0% of the gradient norm of ")
    assert ("(and more than half for 3 other parameters)" in own[0]) is not groups
    assert own[0].endswith(
        f"so training may fail; try the codec {DEFAULT_CODEC}, or a plan with residual=True"
    )
    assert ledger.summary().warnings == tuple(own)
    assert [text for text in caplog.messages if text.startswith("rank 1: ")] == own
    assert capsys.readouterr().err == "", "logging prints nothing of its own"


@pytest.mark.parametrize(
    "plan",
    [
        Plan(parse("quantize:8")),
        Plan(parse("bf16")),
        Plan(parse(KILLS), residual=True),
        Plan(parse("topk:0.1")),
        Plan(),
    ],
    ids=lambda plan: f"{plan.codec}-{plan.keeps_residual}",
)
def test_others_are_never_told_of(
    plan: Plan, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> dict[int, str]:
        model, rank = make_model(), exchange.link.rank
        losses = lambda _: batch_loss(model, 0, slice(rank, rank + 1))  # noqa: E731
        return trained(exchange, model, losses, strict=True)[1]

    assert run_exchanges(3, body, plan) == [{}, {}, {}]


@pytest.mark.parametrize("bucket_nbytes", [None, 100])
def test_strict_ranks_raise_after_the_same_step_where_one_loses(
    bucket_nbytes: int | None, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    """Rank 2's gradients are small in all but step 8, which so is no third sample."""

    def body(exchange: Exchange) -> tuple[dict[int, str], int]:
        model, rank = make_model(), exchange.link.rank
        loss = batch_loss(model, 0, slice(rank, rank + 1))

        def losses(step: int) -> Callable[[], torch.Tensor]:
            return lambda: loss() * (1e3 if rank != 2 or step == 8 else 1.0)

        ledger, errors = trained(exchange, model, losses, 64, strict=True)
        return errors, ledger.summary().steps

    results = run_exchanges(3, body, Plan(parse(KILLS), "star", bucket_nbytes=bucket_nbytes))
    assert all(result == results[0] for result in results)
    errors, steps = results[0]
    assert (list(errors), steps) == ([16], 64)
    assert errors[16].startswith(f"rank 2: {KILLS} loses ")


def test_a_parameter_that_a_rank_does_not_use_is_no_reason(run_exchanges: Ranks) -> None:
    """Rank 0 of a star encodes the sum of the others, of which it loses something; its own gradient is 0."""

    def body(exchange: Exchange) -> Ledger:
        rank, x = exchange.link.rank, torch.randn(4, 40)
        model = nn.Linear(40, 1, bias=False)
        return trained(exchange, model, lambda _: lambda: (model(x) * (rank > 0)).square().mean())[0]

    for rank, ledger in enumerate(run_exchanges(3, body, Plan(parse("quantize:8"), "star"))):
        (counts,) = ledger.summary().lost.parameters.values()
        assert (counts.samples, counts.without_own) == ((4, 0) if rank else (0, 4))
        assert counts.share_sum < 0.1


def meter_of(plan: Plan, rank: int = 0) -> tuple[EncodingErrorMeter, Exchange]:
    """Return the meter of a parameter ``w``, without a ledger, and its exchange."""
    exchange = Exchange(loopback(1)[0], plan)
    return EncodingErrorMeter(SyncContext(exchange, ranks=[rank]), ["w"]), exchange


def test_samples_need_not_follow_each_other_and_a_step_without_finite_values_is_none() -> None:
    meter, told = meter_of(Plan(parse(KILLS)))[0], []
    for own, lost in ((1.0, 1.0), (1.0, 0.1), (math.inf, 1.0), (1.0, math.nan), (1.0, 0.3), (4.0, 2.0)):
        layout = Layout(("w",), (4,), ("all",))
        layout.norms.own.fill_(own)
        layout.norms.lost.fill_(lost)
        meter.measured(layout, 2)
        try:
            meter.end_step()
        except LossyWarning as warning:
            told.append((own, lost, str(warning)))
    assert [each[:2] for each in told] == [(4.0, 2.0)]
    assert "70.7%" in told[0][2]


def test_advice_is_not_what_one_has() -> None:
    for spec, advice in (
        (DEFAULT_CODEC, f"try the codec (?!{DEFAULT_CODEC})[a-z0-9]+, or a plan with residual=True"),
        ("terngrad", f"try the codec {DEFAULT_CODEC}"),
    ):
        meter, _ = meter_of(Plan(parse(spec)), rank=3)
        for _ in range(3):
            layout = Layout(("w",), (4,), ("all",))
            layout.norms.own.fill_(1.0)
            layout.norms.lost.fill_(0.9)
            meter.measured(layout, 2)
        with pytest.warns(LossyWarning, match=f"rank 3: {spec} loses .*; {advice}$"):
            meter.end_step()


def test_another_plan_is_judged_by_its_own_losses(recwarn: pytest.WarningsRecorder) -> None:
    meter, exchange = meter_of(Plan.of(KILLS))
    layout = Layout(("w",), (8,), ("w",))

    def lose(times: int) -> None:
        for _ in range(times):
            layout.norms.sums.copy_(torch.tensor([[1.0], [1.0], [1.0], [0.0]]))
            meter.measured(layout, 2)
            meter.end_step()

    lose(2)
    exchange.follow(Plan.of("errbound:2^3"))
    meter.forget()
    lose(2)
    assert len(recwarn) == 0, "no plan has lost several times"
    lose(1)
    (warning,) = recwarn
    assert "errbound:2^3 loses 100.0%" in str(warning.message)
