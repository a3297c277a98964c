"""A run of bounded staleness goes on from what its ranks saved."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Ledger, redivide
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.links import loopback
from gradwire.plan import Plan
from gradwire.sync.checkpoint import unpack
from gradwire.sync.method import Method
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR, flat, sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
HALF, STEPS = 3, 6


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def _steps(state: dict[str, Any]) -> int:
    rank = int(next(re.finditer(r"rank(\d+)", next(iter(state))))[1])
    return unpack(state, rank, int(json.loads(state[f"gradwire/rank{rank}/pipe"])["world"])).steps_done


def _older(method: Method) -> dict[str, Any]:
    """Return a state as an earlier gradwire wrote it, of a method that has taken no step."""
    link = method.exchange.link
    state: dict[str, Any] = {"rank": link.rank, "world": link.world, "clock": 0}
    state["model"] = {name: each.clone() for name, each in method.model.state_dict().items()}
    if isinstance(method, StaleServer):
        return {**state, "optimizer": method._optimizer.state_dict()}
    return {**state, "residuals": method.residuals.state_dict()}


def _train(
    exchange: Exchange, model: nn.Module, loss: BatchLoss, staleness: int, saved: dict[str, Any] | None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Train half of the steps, from the beginning or from what was saved; return weights and state."""
    rank, codec = exchange.link.rank, parse("bitpack:2")
    if rank == 0:
        server = StaleServer(model, sgd(model), exchange.plan, staleness, codec, group=exchange.link)
        if saved is not None:
            server.load_state_dict(saved)
        server.serve(HALF)
        return flat(model), server.state_dict()
    with StaleWorker(model, exchange.plan, staleness, codec, group=exchange.link) as worker:
        if saved is not None:
            worker.load_state_dict(saved)
        for _ in range(HALF):
            worker.step(loss(model, worker.steps_done, slice(rank - 1, rank)))
        worker.drain()
        return flat(model), worker.state_dict()


@pytest.mark.parametrize(("workers", "staleness"), [(3, 0), (1, 2)])
@pytest.mark.parametrize("spec", ["topk:0.3", "errbound:2^-10"])
def test_a_run_goes_on_bit_for_bit(
    workers: int,
    staleness: int,
    spec: str,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    plan = Plan(parse(spec), "star")

    def straight(exchange: Exchange) -> torch.Tensor:
        model, rank, codec = make_model(), exchange.link.rank, parse("bitpack:2")
        if rank == 0:
            server = StaleServer(model, sgd(model), exchange.plan, staleness, codec, group=exchange.link)
            for _ in range(STEPS // HALF):
                server.serve(HALF)
            return flat(model)
        with StaleWorker(model, exchange.plan, staleness, codec, group=exchange.link) as worker:
            for step in range(STEPS):
                worker.step(batch_loss(model, step, slice(rank - 1, rank)))
                if step == HALF - 1:
                    worker.drain()
        return flat(model)

    def first(exchange: Exchange) -> dict[str, Any]:
        return _through_a_file(_train(exchange, make_model(), batch_loss, staleness, None)[1])

    wanted = run_exchanges(workers + 1, straight, plan)
    saved = run_exchanges(workers + 1, first, plan)

    def second(exchange: Exchange) -> tuple[torch.Tensor, int]:
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))  # other weights
        weights, state = _train(exchange, model, batch_loss, staleness, saved[exchange.link.rank])
        return weights, _steps(state)

    assert [_steps(state) for state in saved] == [HALF] * (workers + 1)
    for (weights, clock), straight_weights in zip(
        run_exchanges(workers + 1, second, plan), wanted, strict=True
    ):
        assert clock == STEPS
        assert torch.equal(weights, straight_weights)


def test_workers_at_their_own_pace_go_on_together(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, int]:
        model, state = make_model(), None
        for _ in range(2):
            weights, state = _train(exchange, model, batch_loss, 2, state)
        assert state is not None
        return weights, _steps(state)

    master, *workers = run_exchanges(4, body, STAR)
    assert master[1] == STEPS
    assert all(clock == STEPS for _, clock in workers)
    assert all(torch.equal(weights, workers[0][0]) for weights, _ in workers)


def test_what_does_not_fit_is_refused_and_changes_nothing(make_model: MakeModel) -> None:
    links = loopback(3)
    model = make_model()
    server = StaleServer(model, sgd(model), STAR, 1, group=links[0])
    worker = StaleWorker(make_model(), STAR, 1, group=links[1])
    good, own = _older(server), _older(worker)
    before = flat(model)
    strange = {**good["model"], "0.weight": torch.ones(7, 6)}
    text = "gradwire/rank0/pipe"
    new = server.state_dict()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (server, own, "rank 0: expected the state of this rank, .* got a state of rank 1"),
        (worker, good, "load on each rank the state that the same rank saved"),
        (server, worker.state_dict(), "rank 0: expected the state of this rank, .* got a state of rank 1"),
        (server, {**good, "world": 4}, "rank 0 of 3: expected a state of 3 ranks, got one of 4"),
        (worker, {**own, "rank": 2}, "rank 1: expected the state of this rank, .* got a state of rank 2"),
        (server, {**good, "clock": -1}, "at least 0 for clock in the state of rank 0, got -1"),
        (
            server,
            {**good, "model": strange},
            r"'0\.weight' \(7, 5\) of .*, got \(7, 6\) of",
        ),
        (
            server,
            {**good, "optimizer": {"state": {}, "param_groups": []}},
            "the optimizer cannot load the state",
        ),
        (worker, {**own, "residuals": {}}, "for residuals in the state of rank 1, got no field 'residuals'"),
        (server, {**new, text: new[text].replace("0", "1")}, "match its checksum"),
        (server, {**new, "gradwire/rank0/model/0.bias": torch.ones(7)}, "is damaged: its checksum differs"),
        (
            server,
            {**new, "gradwire/rank0/optimizer": {**new["gradwire/rank0/optimizer"], "state": 1}},
            "crc32c",
        ),
    ]
    for each, state, reason in cases:
        with pytest.raises(StateError, match=reason):
            each.load_state_dict(state)
    assert torch.equal(flat(model), before)
    assert (server.steps_done, worker.steps_done) == (0, 0)


def test_states_that_an_earlier_gradwire_saved_still_load(make_model: MakeModel) -> None:
    links = loopback(2)
    plan = Plan(parse("topk:0.3"), "star")
    makes: list[Callable[[nn.Module], Method]] = [
        lambda model: StaleServer(model, sgd(model), plan, 1, group=links[0]),
        lambda model: StaleWorker(model, plan, 1, group=links[1]),
    ]
    for rank, make in enumerate(makes):
        saved = {**_older(make(make_model())), "clock": 7}
        if rank:
            saved["residuals"]["residuals"]["gradient"][:] = 0.5
        ours = make(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)))
        ours.load_state_dict(saved)
        assert ours.steps_done == 7
        assert torch.equal(flat(ours.model), flat(make_model()))
        assert set(ours.residuals.state_dict()["residuals"]) == ({"gradient"} if rank else set())
        assert all((each == 0.5).all() for each in ours.residuals.state_dict()["residuals"].values())


def test_another_number_of_workers_keeps_the_sum_of_residuals_and_the_weights(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(parse("topk:0.3"), "star")

    def first(exchange: Exchange) -> dict[str, Any]:
        return _train(exchange, make_model(), batch_loss, 1, None)[1]

    saved = run_exchanges(4, first, plan)
    for world in (2, 3, 6):
        states = redivide(list(reversed(saved)), world)

        def second(
            exchange: Exchange, states: list[Any] = states
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            model, state = make_model(), states[exchange.link.rank]
            link = exchange.link
            ours: Any = StaleWorker(model, plan, 1, parse("bitpack:2"), group=link) if link.rank else None
            ours = ours or StaleServer(model, sgd(model), plan, 1, parse("bitpack:2"), group=link)
            ours.load_state_dict(_through_a_file(state))
            assert ours.steps_done == HALF
            return flat(model), ours.residuals.state_dict()["residuals"].get("gradient")

        (_, none), *workers = run_exchanges(world, second, plan)
        assert none is None, "a server encodes no gradient"
        assert all(torch.equal(weights, workers[0][0]) for weights, _ in workers)
        kept = sum(
            each[f"gradwire/rank{rank}/residual/gradient"] for rank, each in list(enumerate(saved))[1:]
        )
        total = sum(residual for _, residual in workers)
        assert torch.allclose(total, kept, atol=1e-6)


def test_a_worker_that_has_not_drained_has_no_state(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        if exchange.link.rank == 0:
            StaleServer(model, sgd(model), exchange.plan, 1, group=exchange.link).serve(1)
            return
        with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
            state = worker.state_dict()
            worker.step(batch_loss(model, 0, slice(0, 1)))
            for call in (worker.state_dict, lambda: worker.load_state_dict(state)):
                with pytest.raises(StateError, match=r"rank 1 undrained after step 1; call drain"):
                    call()
            worker.drain()
            assert _steps(worker.state_dict()) == 1

    run_exchanges(2, body, STAR)


def test_the_ledger_of_a_server_counts_what_its_workers_sent_and_got(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> Ledger:
        model, ledger = make_model(), Ledger(exchange.link.rank)
        if exchange.link.rank == 0:
            StaleServer(model, sgd(model), exchange.plan, 0, ledger=ledger, group=exchange.link).serve(HALF)
            return ledger
        with StaleWorker(model, exchange.plan, 0, ledger=ledger, group=exchange.link) as worker:
            for step in range(HALF):
                worker.step(batch_loss(model, step, slice(0, 1)))
        return ledger

    server, *workers = (ledger.summary() for ledger in run_exchanges(3, body, STAR))
    assert server.steps == 1
    assert [worker.steps for worker in workers] == [HALF] * 2
    nbytes = 4 * 58
    assert server.buckets["gradient"].gradient_nbytes == 2 * HALF * nbytes
    assert server.buckets["gradient"].cost.raw_nbytes == 2 * HALF * nbytes, (
        "the weights of each step, to both"
    )
    assert server.buckets["weights"].cost.raw_nbytes == 2 * nbytes
    assert sum(worker.buckets["gradient"].cost.raw_nbytes for worker in workers) == 2 * HALF * nbytes
