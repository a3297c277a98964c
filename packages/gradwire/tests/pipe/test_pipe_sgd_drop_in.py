from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import gradwire
from gradwire import DSync
from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.errors import ExchangeError, SpecError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat.update import clip
from support.project import DOCS

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
LR = 2.0**-4
EXACT = Plan(pipeline=2)
PAPER: dict[str, Any] = {"correction": "none"}


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(pipe: gradwire.PipeSGD | DSync, batch_loss: BatchLoss, steps: int) -> None:
    rank = pipe.exchange.link.rank
    for _ in range(steps):
        pipe.step(batch_loss(pipe.model, pipe.steps_done, slice(rank, rank + 1)))


def _by_hand(
    model: nn.Module,
    batch_loss: BatchLoss,
    steps: int,
    treat: Callable[[list[Parameter]], object],
    rate: Callable[[int], float] = lambda _: LR,
) -> torch.Tensor:
    """Do two ranks' w[t] = w[t-1] - lr[t-2] treat(g[t-2]) in one process, and drain."""
    weights = list(model.parameters())
    means: list[list[torch.Tensor]] = []
    for t in range(steps + 2):
        if t >= 2:
            for weight, mean in zip(weights, means[t - 2], strict=True):
                weight.grad = mean.clone()
            treat(weights)
            with torch.no_grad():
                for weight in weights:
                    assert weight.grad is not None
                    weight.sub_(rate(t - 2) * weight.grad)
        if t < steps:
            local = [torch.autograd.grad(batch_loss(model, t, slice(r, r + 1))(), weights) for r in range(2)]
            means.append([(a + b) / 2 for a, b in zip(*local, strict=True)])
    return _flat(model)


@pytest.mark.parametrize("pipeline", [1, 2, 3])
@pytest.mark.parametrize("spec", ["identity", "errbound:2^-10"])
def test_while_it_warms_up_it_is_d_sync(
    pipeline: int, spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(parse(spec), pipeline=pipeline, bucket_nbytes=100)

    def train(exchange: Exchange, pipelined: bool) -> torch.Tensor:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        with (
            gradwire.PipeSGD(model, optimizer, plan, warmup_steps=8, group=exchange.link)
            if pipelined
            else DSync(model, optimizer, plan, group=exchange.link)
        ) as pipe:
            _train(pipe, batch_loss, 8)
        return _flat(model)

    ours, theirs = (run_exchanges(3, lambda e, d=d: train(e, d), plan) for d in (True, False))
    assert all(torch.equal(result, theirs[0]) for result in [*ours, *theirs])


def test_the_plan_is_the_default_a_plan_or_a_file(
    run_exchanges: Ranks, make_model: MakeModel, tmp_path: Path
) -> None:
    saved = Plan(parse("quantize:8"), "star", pipeline=3)
    saved.save(tmp_path / "plan.json")

    def plans(exchange: Exchange) -> list[tuple[Plan, int]]:
        found = []
        codec = parse("bf16")
        for plan in (None, EXACT, codec, "bf16", tmp_path / "plan.json", str(tmp_path / "plan.json")):
            model = make_model()
            pipe = gradwire.PipeSGD(
                model, torch.optim.SGD(model.parameters(), lr=LR), plan, group=exchange.link
            )
            found.append((pipe.plan, pipe.pipeline))
            pipe.close()
        return found

    ((default, exact, codec, spec, *files),) = run_exchanges(1, plans)
    assert default == (Plan(parse(DEFAULT_CODEC), "ring", pipeline=2, residual=False), 2), "it will choose"
    assert exact == (EXACT, 2)
    assert codec == spec == (Plan(parse("bf16"), "ring", pipeline=2), 2)
    assert files == [(saved, 3)] * 2


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_the_averaged_gradient_is_clipped_over_all_parameters(
    max_norm: float, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, list[float]]:
        model, norms = make_model(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)

        def note(*_: object) -> None:
            norms.append(
                math.hypot(*(float(p.grad.norm()) for p in model.parameters() if p.grad is not None))
            )

        optimizer.register_step_pre_hook(note)
        with gradwire.PipeSGD(
            model, optimizer, EXACT, max_norm=max_norm, **PAPER, group=exchange.link
        ) as pipe:
            _train(pipe, batch_loss, 8)
        return _flat(model), norms

    results = run_exchanges(2, body)
    end = _by_hand(make_model(), batch_loss, 8, lambda ps: nn.utils.clip_grad_norm_(ps, max_norm))
    free = _by_hand(make_model(), batch_loss, 8, lambda _: None)
    for weights, norms in results:
        assert torch.equal(weights, results[0][0])
        torch.testing.assert_close(weights, end, rtol=1e-5, atol=1e-6)
        assert len(norms) == 8
        assert max(norms) <= max_norm * (1 + 1e-6)
    assert torch.allclose(end, free, atol=1e-4) == (max_norm > 1), "the limit is reached in one case only"


@pytest.mark.parametrize("last", [math.inf, math.nan, 1e-3])
def test_a_gradient_that_is_short_or_not_finite_is_not_scaled(last: float) -> None:
    gradient = torch.tensor([0.5, -0.25, last])
    clip(gradient, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([0.5, -0.25, last]), rtol=0, atol=0, equal_nan=True)


def test_clipping_keeps_the_direction() -> None:
    gradient = torch.tensor([3.0, -4.0])
    clip(gradient, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, -0.8]))


def test_the_averaged_gradient_can_be_replaced_before_the_update(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def signs(parameters: list[Parameter]) -> None:
        first, *others = parameters
        first.grad = None
        for parameter in others:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.sign()

    def zeroed(parameters: list[Parameter]) -> None:
        signs(parameters)
        parameters[0].grad = torch.zeros_like(parameters[0])

    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        options: dict[str, Any] = {"on_average": signs, "group": exchange.link, **PAPER}
        with gradwire.PipeSGD(model, optimizer, EXACT, **options) as pipe:
            _train(pipe, batch_loss, 6)
        return _flat(model)

    end = _by_hand(make_model(), batch_loss, 6, zeroed)
    assert all(torch.equal(result, end) for result in run_exchanges(2, body))
    count = next(make_model().parameters()).numel()
    assert torch.equal(end[:count], _flat(make_model())[:count])
    assert not torch.equal(end[count:], _flat(make_model())[count:])


def test_a_gradient_is_applied_with_the_rate_of_its_own_step_and_nobody_warns(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with gradwire.PipeSGD(model, optimizer, EXACT, **PAPER, group=exchange.link) as pipe:
            for t in range(6):
                pipe.step(batch_loss(model, t, slice(rank, rank + 1)))
                schedule.step()  # a warning is an error here
        return _flat(model)

    end = _by_hand(make_model(), batch_loss, 6, lambda _: None, lambda t: LR * 0.5**t)
    assert all(torch.equal(result, end) for result in run_exchanges(2, body))


def test_an_evaluation_drains_and_leaves_every_module_as_it_was(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    end = _by_hand(make_model(), batch_loss, 5, lambda _: None)

    def fail_in(pipe: gradwire.PipeSGD) -> None:
        with pipe.evaluating() as drained:
            assert drained.cost.raw_nbytes > 0
            assert torch.equal(_flat(pipe.model), end)
            assert not any(module.training for module in pipe.model.modules())
            raise ZeroDivisionError

    def body(exchange: Exchange) -> None:
        model = make_model()
        model[1].eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with gradwire.PipeSGD(model, optimizer, EXACT, **PAPER, group=exchange.link) as pipe:
            _train(pipe, batch_loss, 5)
            with pytest.raises(ZeroDivisionError):
                fail_in(pipe)
            assert [module.training for module in model.modules()] == [True, True, False, True]

    run_exchanges(2, body)


def test_replicas_can_be_compared_in_the_middle_of_a_pipeline(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange, checking: bool) -> tuple[torch.Tensor, torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with gradwire.PipeSGD(model, optimizer, Plan(pipeline=3), group=exchange.link) as pipe:
            for _ in range(6):
                _train(pipe, batch_loss, 1)
                if checking:
                    pipe.check_replicas()
            before = _flat(model)
        return before, _flat(model)

    checked, free = (run_exchanges(3, lambda e, c=c: body(e, c)) for c in (True, False))
    for one, other in zip(checked, free, strict=True):
        assert torch.equal(torch.stack(one), torch.stack(other))
    assert not torch.equal(*free[0])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_norm": 0}, "expected a max_norm above 0, or None for no clipping, got 0"),
        ({"max_norm": math.nan}, "max_norm .* got nan"),
        ({"max_norm": "1"}, "max_norm .* got '1'"),
        ({"plan": 17}, "expected a Plan, a codec, its spec or .* for plan, got 17"),
        ({"plan": "no/plan.json"}, "cannot be read"),
        ({"plan": "fp17"}, "unknown codec 'fp17'"),
        ({"timeout_s": 0}, "expected timeout_s above 0"),
        ({"warmup_steps": -1}, "expected a whole number of at least 0 for warmup_steps, got -1"),
        ({"correction": "lazy"}, "expected one of eager, none for correction, got 'lazy'"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: dict[str, Any], reason: str, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with pytest.raises(SpecError, match=reason):
            gradwire.PipeSGD(model, optimizer, **{"group": exchange.link, **arguments})

    run_exchanges(1, body)


@pytest.mark.parametrize(
    "other", [{"plan": Plan(pipeline=3)}, {"max_norm": 1.0}, {"warmup_steps": 1}, {"plan": "fp16"}, PAPER]
)
def test_ranks_with_other_options_are_named(
    other: dict[str, Any], run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> str:
        model, rank = make_model(), exchange.link.rank
        options: dict[str, Any] = {"plan": EXACT, **(other if rank == 2 else {})}
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with pytest.raises(ExchangeError) as caught:
            gradwire.PipeSGD(model, optimizer, group=exchange.link, **options)
        return str(caught.value)

    texts = run_exchanges(3, body)
    assert all("but those of rank 2 differ from those of rank 0" in text for text in texts)
    assert "warmup_steps=0, max_norm=None" in texts[0]


def test_without_torch_distributed_the_error_says_what_to_call(make_model: MakeModel) -> None:
    model = make_model()
    with pytest.raises(ExchangeError, match=r"call torch\.distributed\.init_process_group first"):
        gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=LR))


def test_a_link_of_the_caller_outlives_the_pipeline(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> float:
        model = make_model()
        pipe = gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=LR), group=exchange.link)
        _train(pipe, batch_loss, 3)
        pipe.close()
        pipe.close()
        with pytest.raises(ExchangeError, match="this PipeSGD is closed"):
            _train(pipe, batch_loss, 1)
        one = torch.ones(1)
        exchange.all_reduce(one, average=False)
        return float(one)

    assert run_exchanges(2, body) == [2.0, 2.0]


def _blocks() -> list[tuple[str, str]]:
    texts = {
        name: (DOCS / name).read_text(encoding="utf-8") for name in ("pipe_sgd_drop_in.md", "checkpoint.md")
    }
    return [
        (f"block {number} of {name}", block)
        for name, text in texts.items()
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    ]


@pytest.mark.parametrize(("name", "block"), _blocks())
def test_the_python_of_the_pages_runs(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for variable, value in alone.items():  # what torchrun would set
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, name, "exec"), {})


def test_both_pages_have_their_examples() -> None:
    assert [name for name, _ in _blocks()] == [
        "block 0 of pipe_sgd_drop_in.md",
        "block 0 of checkpoint.md",
        "block 1 of checkpoint.md",
        "block 2 of checkpoint.md",
    ]
