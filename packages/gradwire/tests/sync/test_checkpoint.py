from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR

import gradwire
from gradwire.checkpoints import opened_text, sealed_text
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.checkpoint import IN_FLIGHT, redivide
from gradwire.sync.dcp import read_ranks

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
States = Callable[[int, Plan], list[Any]]
Optimizer = torch.optim.Optimizer
Parts = tuple[nn.Module, Optimizer, LRScheduler]

OWN = "gradwire/rank0/own"
MAKERS: dict[str, Callable[[nn.Module], tuple[Optimizer, LRScheduler]]] = {
    "momentum": lambda model: _with(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
        lambda optimizer: ExponentialLR(optimizer, 0.8),
    ),
    "adam, one cycle": lambda model: _with(  # which changes the betas, too
        torch.optim.Adam(model.parameters(), lr=0.01), lambda optimizer: OneCycleLR(optimizer, 0.1, 20)
    ),
    "tensor lr": lambda model: _with(
        torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1)),
        lambda optimizer: ExponentialLR(optimizer, 0.8),
    ),
}


def _with(
    optimizer: Optimizer, schedule: Callable[[Optimizer], LRScheduler]
) -> tuple[Optimizer, LRScheduler]:
    return optimizer, schedule(optimizer)


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(pipe: gradwire.PipeSGD, schedule: LRScheduler, batch_loss: BatchLoss, steps: int) -> None:
    rank = pipe.exchange.link.rank
    for _ in range(steps):
        pipe.step(batch_loss(pipe.model, pipe.steps_done, slice(rank, rank + 1)))
        schedule.step()


def _through_a_file(state: object) -> Any:
    memory = io.BytesIO()
    torch.save(state, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


# Optimizers and schedules are in one part of the state, what codecs lose in another; they meet in "topk".
PAIRS = [("momentum", spec) for spec in ("identity", "errbound:2^-10", "terngrad", "quantize:4")]
PAIRS += [(maker, "topk:0.25") for maker in MAKERS]


@pytest.mark.filterwarnings("ignore:.* terngrad loses:gradwire.errors.LossyWarning")
@pytest.mark.parametrize(("maker", "spec"), PAIRS)
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    pipeline: int, maker: str, spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(parse(spec), pipeline=pipeline)

    def train(exchange: Exchange, save_after: tuple[int, ...]) -> list[torch.Tensor]:
        seen = []
        saved: dict[str, Any] = {}
        for steps in (*save_after, 10):
            model = make_model()
            optimizer, schedule = MAKERS[maker](model)
            pipe = gradwire.PipeSGD(model, optimizer, plan, group=exchange.link)
            parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "pipe": pipe}
            if saved:
                nn.init.zeros_(next(model.parameters()))  # what was not loaded would show
                for name, part in parts.items():
                    part.load_state_dict(saved[name])  # type: ignore[attr-defined]
            _train(pipe, schedule, batch_loss, steps - pipe.steps_done)
            saved = _through_a_file(
                {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
            )
            seen.append(_flat(model))
            if steps == 10:
                pipe.drain()
                seen.append(_flat(model))
            pipe.close()
        return seen[-2:]

    straight, resumed, often = (run_exchanges(3, lambda e, s=s: train(e, s)) for s in ((), (5,), (1, 2, 6)))
    for results in zip(straight, resumed, often, strict=True):
        for one, other, third in zip(*results, strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one, third)
    assert torch.equal(straight[0][1], straight[1][1])
    assert not torch.equal(straight[0][0], straight[0][1]), "nothing was in flight"


def test_saving_does_not_disturb_the_run_and_holds_averages(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[dict[str, Any], dict[str, Any], torch.Tensor]:
        pipe, schedule = _pipe(exchange, make_model(), Plan(pipeline=2))
        with pipe:
            _train(pipe, schedule, batch_loss, 1)
            early = pipe.state_dict()
            kept = early[IN_FLIGHT].clone()
            _train(pipe, schedule, batch_loss, 4)
            assert torch.equal(early[IN_FLIGHT], kept), "a later step changed the state"
            return early, pipe.state_dict(drain=True), _flat(pipe.model)

    model = make_model()
    weights = list(model.parameters())
    local = [torch.autograd.grad(batch_loss(model, 0, slice(r, r + 1))(), weights) for r in (0, 1)]
    mean = torch.cat([(a + b).flatten() / 2 for a, b in zip(*local, strict=True)])
    own = [torch.cat([each.flatten() for each in gradient]) for gradient in local]
    for rank, (early, drained, _) in enumerate(run_exchanges(2, body)):
        assert torch.equal(early[IN_FLIGHT], torch.stack([mean, torch.zeros_like(mean)]))
        text = json.loads(early[f"gradwire/rank{rank}/pipe"])
        assert (text["rank"], text["world"], text["steps_done"], len(text["in_flight"])) == (rank, 2, 1, 1)
        assert text["in_flight"][0][0]["lr"] == 0.1
        assert json.loads(drained[f"gradwire/rank{rank}/pipe"])["in_flight"] == []
        assert torch.equal(early[f"gradwire/rank{rank}/own"], own[rank][None])
        assert not drained[f"gradwire/rank{rank}/own"].any()
        assert set(early) == {f"gradwire/rank{rank}/pipe", f"gradwire/rank{rank}/own", IN_FLIGHT}


def _pipe(exchange: Exchange, model: nn.Module, plan: Plan) -> tuple[gradwire.PipeSGD, LRScheduler]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gradwire.PipeSGD(model, optimizer, plan, group=exchange.link), ExponentialLR(optimizer, 0.8)


@pytest.fixture
def states(run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss) -> States:
    """``states(world, plan)`` gives the states of all ranks after 5 steps."""

    def of(world: int, plan: Plan) -> list[Any]:
        def body(exchange: Exchange) -> dict[str, Any]:
            pipe, schedule = _pipe(exchange, make_model(), plan)
            with pipe:
                _train(pipe, schedule, batch_loss, 5)
                return pipe.state_dict()

        return run_exchanges(world, body)

    return of


@pytest.mark.parametrize("spec", ["identity", "topk:0.25"])
def test_another_ranks_state_or_another_worlds_changes_nothing(
    spec: str,
    states: States,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    plan = Plan(parse(spec), pipeline=2)
    ours, others = states(2, plan), states(3, plan)

    def body(exchange: Exchange, refusing: bool) -> torch.Tensor:
        pipe, schedule = _pipe(exchange, make_model(), plan)
        rank = exchange.link.rank
        with pipe:
            _train(pipe, schedule, batch_loss, 3)
            if refusing:
                with pytest.raises(
                    StateError, match=f"rank {rank}: expected the state of this rank.* of rank {1 - rank};"
                ):
                    pipe.load_state_dict(ours[1 - rank])
                with pytest.raises(StateError, match=r"got one of 3 ranks; .*redivide"):
                    pipe.load_state_dict(others[rank])
                with pytest.raises(StateError, match="without any rank's key"):
                    pipe.load_state_dict({})
            _train(pipe, schedule, batch_loss, 3)
        return _flat(pipe.model)

    refused, free = (run_exchanges(2, lambda e, r=r: body(e, r)) for r in (True, False))
    assert torch.equal(torch.stack(refused), torch.stack(free))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda state: {**state, IN_FLIGHT: state[IN_FLIGHT][:, :-1]}, r"58 floats each, got .*\[57, 57\]"),
        (
            lambda state: {**state, IN_FLIGHT: state[IN_FLIGHT][:1]},
            "from 0 to 1 for the number of gradients in flight",
        ),
        (lambda state: {**state, IN_FLIGHT: None}, "tensor .* for gradwire/in_flight in .*, got None; load"),
        (lambda state: {**state, OWN: state[OWN][:, :-1]}, r"58 floats each, got"),
        (lambda state: {**state, OWN: state[OWN][:0]}, "from 0 to 0 for own in the state of rank 0, got 1"),
        (lambda state: {**state, OWN: None}, "for gradwire/rank0/own in the state of rank 0, got None"),
        (
            lambda state: {**state, "gradwire/rank0/pipe": "{"},
            "expected JSON for gradwire/rank0/pipe in the state of rank 0",
        ),
        (
            lambda state: {**state, "gradwire/rank0/pipe": '{"version": 9}'},
            "one of 1, 2, 3 for version in the state of rank 0, got 9",
        ),
        (
            lambda state: {**state, "gradwire/rank0/residual/gradient": torch.ones(58)},
            "expected a state without residuals",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    damage: Callable[[dict[str, Any]], dict[str, Any]],
    reason: str,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    def body(exchange: Exchange) -> None:
        pipe, schedule = _pipe(exchange, make_model(), Plan(pipeline=2))
        with pipe:
            _train(pipe, schedule, batch_loss, 5)
            before = pipe.state_dict()
            with pytest.raises(StateError, match=reason):
                pipe.load_state_dict(damage(before))
            after = pipe.state_dict()
        for key in (IN_FLIGHT, OWN):
            assert torch.equal(after.pop(key), before.pop(key))
        assert after == before

    run_exchanges(1, body)


def test_a_longer_pipeline_than_the_plans_must_be_drained_before_saving(
    states: States, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    (state,) = states(1, Plan(pipeline=3))

    def body(exchange: Exchange) -> None:
        pipe, _ = _pipe(exchange, make_model(), Plan(pipeline=2))
        with pipe, pytest.raises(StateError, match=r"expected at most 2 gradients .* drain before saving"):
            pipe.load_state_dict(state)

    run_exchanges(1, body)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_another_world_keeps_the_sum_of_residuals_and_the_gradients_in_flight(
    world: int,
    states: States,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    plan = Plan(parse("topk:0.25"), pipeline=2)
    olds = states(3, plan)
    news = redivide(olds[::-1], world)
    assert len(news) == world
    sums = [
        sum(state[f"gradwire/rank{rank}/residual/gradient"].double() for rank, state in enumerate(all_ranks))
        for all_ranks in (olds, news)
    ]
    assert sums[0].abs().max() > 0
    torch.testing.assert_close(sums[1], sums[0], rtol=1e-6, atol=1e-7)
    assert all(torch.equal(state[IN_FLIGHT], olds[0][IN_FLIGHT]) for state in news)

    def resume(exchange: Exchange) -> tuple[int, torch.Tensor]:
        pipe, schedule = _pipe(exchange, make_model(), plan)
        with pipe:
            pipe.load_state_dict(news[exchange.link.rank])
            steps = pipe.steps_done
            _train(pipe, schedule, batch_loss, 2)
            pipe.check_replicas()
        return steps, _flat(pipe.model)

    results = run_exchanges(world, resume)
    assert all(steps == 5 and torch.equal(weights, results[0][1]) for steps, weights in results)


def test_only_all_ranks_of_one_moment_can_be_divided_anew(states: States) -> None:
    plan = Plan(pipeline=2)
    olds = states(3, plan)
    for some in (olds[:2], [*olds[:2], olds[0]], []):
        with pytest.raises(StateError, match="each rank of one run"):
            redivide(some, 2)
    with pytest.raises(StateError, match="expected a whole number of at least 1 for world, got 0"):
        redivide(olds, 0)
    with pytest.raises(StateError, match="expected the state of one rank, got a state of rank 0, 1"):
        redivide([{**olds[0], **olds[1]}, olds[2]], 2)
    text, _ = opened_text(olds[1]["gradwire/rank1/pipe"])
    later = {**olds[1], "gradwire/rank1/pipe": sealed_text({**text, "steps_done": 6})}
    with pytest.raises(StateError, match="but rank 1, after 6 steps"):
        redivide([olds[0], later, olds[2]], 2)


class _Script:
    """What a script that trains with several processes has; every call begins with the same weights."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = ExponentialLR(self.optimizer, 0.8)
        self.pipe = gradwire.PipeSGD(self.model, self.optimizer, plan)

    def train(self, steps: int) -> torch.Tensor:
        for _ in range(steps):
            seed = 10 * self.pipe.steps_done + dist.get_rank()
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
            self.pipe.step(lambda x=x: self.model(x).square().mean())  # type: ignore[misc]
            self.schedule.step()
        return _flat(self.model)

    def states(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule, "pipe": self.pipe}

    def save(self, folder: str) -> None:
        save(self.states(), checkpoint_id=folder)

    def load(self, folder: str) -> None:
        states = self.states()
        load(states, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )


def resume_over_processes(folder: str) -> tuple[bool, torch.Tensor, str]:
    plan = Plan(parse("topk:0.25"), pipeline=2)
    script = _Script(plan)
    script.train(5)
    script.save(folder)
    straight = script.train(5)
    script.pipe.close()

    again = _Script(plan)
    again.load(folder)
    resumed = again.train(5)
    again.pipe.check_replicas()
    again.pipe.drain()
    again.pipe.check_replicas()
    own = again.pipe.state_dict()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    with pytest.raises(StateError) as caught:
        again.pipe.load_state_dict(gathered[1 - dist.get_rank()])
    again.pipe.close()
    return torch.equal(straight, resumed), resumed, str(caught.value)


@pytest.mark.processes
def test_processes_resume_from_a_distributed_checkpoint(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    results = run_processes(2, resume_over_processes, str(folder))
    for rank, (same, weights, refused) in enumerate(results):
        assert same
        assert torch.equal(weights, results[0][1])
        assert f"rank {rank}: expected the state of this rank" in refused
        assert f"got a state of rank {1 - rank}" in refused

    states = read_ranks(folder, "pipe")
    residuals = [state[f"gradwire/rank{rank}/residual/gradient"] for rank, state in enumerate(states)]
    assert len(residuals) == 2
    assert not torch.equal(*residuals)
    assert states[0][IN_FLIGHT].abs().amax(dim=1).min() > 0
    (alone,) = redivide(states, 1)
    torch.testing.assert_close(
        alone["gradwire/rank0/residual/gradient"], residuals[0] + residuals[1], rtol=1e-6, atol=1e-7
    )
    with pytest.raises(StateError, match="expected a state of gradwire under 'engine'"):
        read_ranks(folder, "engine")
