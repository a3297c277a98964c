from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, SpecError
from gradwire.exchange import Exchange
from gradwire.links import Link, Port, ProcessGroupLink, ThrottledLink
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR, flat, run_all, sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
LOSES_MUCH = pytest.mark.filterwarnings("ignore::gradwire.errors.LossyWarning")


def _train_ps(exchange: Exchange, model: nn.Module, loss: BatchLoss, spec: str) -> list[torch.Tensor]:
    rank, codec, after = exchange.link.rank, parse(spec), []
    if rank == 0:
        server = Server(model, sgd(model), exchange.plan, codec, group=exchange.link)
        for _ in range(8):
            server.step()
        return [flat(model)]
    worker = Worker(model, exchange.plan, codec, group=exchange.link)
    for t in range(8):
        worker.step(loss(model, t, slice(rank - 1, rank)))
        after.append(flat(model))
    return after


def _train_stale(
    exchange: Exchange, model: nn.Module, loss: BatchLoss, spec: str, staleness: int = 0
) -> list[torch.Tensor]:
    rank, codec, after = exchange.link.rank, parse(spec), []
    if rank == 0:
        server = StaleServer(model, sgd(model), exchange.plan, staleness, codec, group=exchange.link)
        for steps in (5, 3):
            server.serve(steps)
        return [flat(model)]
    with StaleWorker(model, exchange.plan, staleness, codec, group=exchange.link) as worker:
        for t in range(8):
            worker.step(loss(model, t, slice(rank - 1, rank)))
            after.append(flat(model))
            if t == 4:
                worker.drain()
    after.append(flat(model))
    return after


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    ("gradient_spec", "weight_spec"),
    [
        ("identity", "identity"),
        ("errbound:2^-10", "bitpack:2"),
        ("quantize:8", "identity"),
        pytest.param("terngrad", "quantize:8", marks=LOSES_MUCH),
    ],
)
def test_staleness_0_is_ps_sync_bit_for_bit(
    workers: int,
    gradient_spec: str,
    weight_spec: str,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    plan = Plan(codec=parse(gradient_spec), algorithm="star")
    wanted = run_exchanges(workers + 1, lambda e: _train_ps(e, make_model(), batch_loss, weight_spec), plan)
    came = run_exchanges(workers + 1, lambda e: _train_stale(e, make_model(), batch_loss, weight_spec), plan)
    assert (wanted[0][0] - flat(make_model())).abs().max() > 0.05
    assert torch.equal(came[0][0], wanted[0][0])
    for rank in range(1, workers + 1):
        assert torch.equal(torch.stack(came[rank][:8]), torch.stack(wanted[rank]))
        assert torch.equal(came[rank][8], came[rank][7]), "draining changes nothing"


def test_segments_are_those_of_an_exchange(run_exchanges: Ranks) -> None:
    """Eight segments both ways, each quantised by its own range."""
    plan = Plan(codec=parse("quantize:8"), algorithm="star", segment_nbytes=1 << 14)
    x = torch.linspace(-1, 1, 30_000)

    def body(exchange: Exchange, stale: bool) -> torch.Tensor:
        model, rank = nn.Linear(30_000, 1, bias=False), exchange.link.rank
        nn.init.ones_(model.weight)
        codec = parse("bitpack:2")
        if rank == 0:
            optimizer = sgd(model, lr=0.1)
            if stale:
                StaleServer(model, optimizer, exchange.plan, 0, codec, group=exchange.link).serve(3)
            else:
                Server(model, optimizer, exchange.plan, codec, group=exchange.link).serve(3)
        else:
            worker = (
                StaleWorker(model, exchange.plan, 0, codec, group=exchange.link)
                if stale
                else Worker(model, exchange.plan, codec, group=exchange.link)
            )
            with worker:
                for t in range(3):
                    worker.step(lambda t=t: (model.weight * x * (rank + t)).square().sum())  # type: ignore[misc]
        return flat(model)

    came = run_exchanges(3, lambda e: body(e, True), plan)
    wanted = run_exchanges(3, lambda e: body(e, False), plan)
    assert all(torch.equal(*pair) for pair in zip(came, wanted, strict=True))
    assert wanted[0].std() > 0.01


def test_residuals_make_up_for_what_pushes_lose(run_exchanges: Ranks) -> None:
    """TopK sends the larger of two gradients; without the residual the smaller would never arrive."""

    def body(exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor | None]:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        if exchange.link.rank == 0:
            StaleServer(model, sgd(model, lr=1.0), exchange.plan, 1, group=exchange.link).serve(6)
            return flat(model), None
        with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
            for _ in range(6):
                worker.step(lambda: -(model.weight * torch.tensor([1.0, 0.75])).sum())
        residual = worker.residuals.of("gradient", 2)
        assert residual is not None
        return flat(model), residual.clone()

    plan = Plan(codec=parse("topk:0.5"), algorithm="star", residual=True)
    (server, _), (worker, residual) = run_exchanges(2, body, plan)
    assert torch.equal(server, worker)
    assert server[1] > 2
    torch.testing.assert_close(server - residual, torch.tensor([6.0, 4.5]))


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
@pytest.mark.parametrize("spec", ["identity", "errbound:2^-12"])
def test_training_converges(staleness: int, spec: str, run_exchanges: Ranks) -> None:
    """Least squares with a known answer, three workers with a third of the rows each, one of them slow."""
    generator = torch.Generator().manual_seed(3)
    x = torch.linalg.qr(torch.randn(3, 30, 6, generator=generator)).Q * 30**0.5
    truth = torch.randn(6, 1, generator=generator)
    y = x @ truth

    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = nn.Linear(6, 1, bias=False), exchange.link.rank
        if rank == 0:
            StaleServer(
                model, sgd(model, lr=0.03, momentum=0.5), exchange.plan, staleness, group=exchange.link
            ).serve(120)
            return flat(model)
        with StaleWorker(model, exchange.plan, staleness, group=exchange.link) as worker:
            for t in range(120):
                if rank == 3 and t % 10 == 0:
                    time.sleep(0.002)
                worker.step(lambda: nn.functional.mse_loss(model(x[rank - 1]), y[rank - 1]))
        return flat(model)

    results = run_exchanges(4, body, Plan(codec=parse(spec), algorithm="star"))
    assert all(torch.equal(result, results[0]) for result in results)
    assert (results[0] - truth.flatten()).abs().max() < 0.02


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_one_worker_is_ordinary_training_under_any_staleness(
    make: type[torch.optim.Optimizer], run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}

    def stale(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        if exchange.link.rank == 0:
            StaleServer(
                model, make(model.parameters(), **options), exchange.plan, 2, group=exchange.link
            ).serve(8)
        else:
            with StaleWorker(model, exchange.plan, 2, group=exchange.link) as worker:
                for t in range(8):
                    worker.step(batch_loss(model, t, slice(0, 1)))
        return flat(model)

    def plain(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        method = DSync(model, make(model.parameters(), **options), exchange.plan, group=exchange.link)
        for t in range(8):
            method.step(batch_loss(model, t, slice(0, 1)))
        return flat(model)

    (wanted,) = run_exchanges(1, plain)
    assert all(torch.equal(came, wanted) for came in run_exchanges(2, stale, STAR))


def test_p_updates_weigh_as_much_as_one_with_the_mean(run_exchanges: Ranks) -> None:
    """Three workers, one step, plain SGD with weight decay: w (1 - lr/3 d)^3 and the three gradients."""

    def body(exchange: Exchange) -> torch.Tensor:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = sgd(model, lr=0.3, weight_decay=0.5)
        if exchange.link.rank == 0:
            StaleServer(model, optimizer, exchange.plan, 1, group=exchange.link).serve(1)
            assert optimizer.param_groups[0]["lr"] == 0.3
        else:
            with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
                worker.step(lambda: 0.0 * model.weight.sum())
        return flat(model)

    assert run_exchanges(4, body, STAR)[0].item() == pytest.approx((1 - 0.1 * 0.5) ** 3)


@pytest.mark.parametrize(("staleness", "numbers"), [(0, [0, 1, 2, 3]), (2, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_a_schedule_hears_the_step_of_every_gradient(
    staleness: int, numbers: list[int], run_exchanges: Ranks
) -> None:
    heard: list[int] = []

    def body(exchange: Exchange) -> None:
        model = nn.Linear(1, 1)
        if exchange.link.rank == 0:
            server = StaleServer(model, sgd(model), exchange.plan, staleness, group=exchange.link)
            server.serve(3, heard.append)
            server.serve(1, heard.append)
            assert server.steps_done == 4
            return
        with StaleWorker(model, exchange.plan, staleness, group=exchange.link) as worker:
            for t in range(4):
                if t == 3:
                    worker.drain()
                worker.step(lambda: model(torch.ones(1, 1)).sum())

    run_exchanges(3, body, STAR)
    assert sorted(heard) == numbers


def test_records_count_gradients_weights_and_messages(run_exchanges: Ranks) -> None:
    n = 300

    def body(exchange: Exchange) -> StepRecord:
        model = nn.Linear(n, 1, bias=False)
        if exchange.link.rank == 0:
            server = StaleServer(model, sgd(model), exchange.plan, 0, group=exchange.link)
            server.synchronise()
            return server.serve(4)
        worker = StaleWorker(model, exchange.plan, 0, group=exchange.link)
        worker.synchronise()
        total = StepRecord()
        for _ in range(4):
            total += worker.step(lambda: model.weight.square().mean())
        return total + worker.drain()

    server, *workers = run_exchanges(3, body, STAR)
    message = 32 + 24
    assert server.steps == 4
    assert server.loss != server.loss
    assert server.cost.raw_nbytes == 2 * 4 * 4 * n
    assert server.cost.wire_nbytes == 2 * (4 * (4 * n + 32) + 5 * message)
    for worker in workers:
        assert (worker.steps, worker.cost.raw_nbytes) == (4, 4 * 4 * n)
        assert worker.cost.wire_nbytes == 4 * (4 * n + 32) + 5 * message
        assert 0 < worker.loss < 10


def test_roles_and_staleness_are_checked(make_model: MakeModel) -> None:
    model = make_model()
    first, second = loopback(2)
    with pytest.raises(SpecError, match="got rank 1; create a StaleWorker on this rank"):
        StaleServer(model, sgd(model), STAR, 1, group=second)
    with pytest.raises(SpecError, match="create a StaleServer on rank 0"):
        StaleWorker(model, STAR, 1, group=first)
    with pytest.raises(SpecError, match="expected the algorithm 'star'"):
        StaleServer(model, sgd(model), Plan(), 1, group=first)
    for wrong in (-1, 1.0, True, None):
        with pytest.raises(SpecError, match="expected a staleness as a whole number from 0"):
            StaleWorker(model, STAR, wrong, group=second)  # type: ignore[arg-type]


def test_a_throttled_star_is_served_too() -> None:
    def body(link: Link) -> torch.Tensor:
        throttled = ThrottledLink(link, Port(5e6))
        model = nn.Linear(20_000, 1, bias=False)
        nn.init.zeros_(model.weight)
        exchange = Exchange(throttled, Plan(algorithm="star", segment_nbytes=1 << 14))
        if link.rank == 0:
            StaleServer(model, sgd(model, lr=2.0), exchange.plan, 1, group=exchange.link).serve(3)
        else:
            with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
                for _ in range(3):
                    worker.step(lambda: -model.weight.sum())
        return flat(model)

    for weights in run_all(body, loopback(3, timeout_s=10)):
        assert weights.eq(6).all()


def _train_over_gloo(staleness: int, stops: bool) -> list[float] | str:
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    model = nn.Linear(3, 1, bias=False)
    optimizer = sgd(model, lr=3.0)
    dist.barrier()
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=3.0 if stops else 20.0)
    exchange = Exchange(link, STAR)
    nn.init.zeros_(model.weight)
    try:
        if link.rank == 0:
            StaleServer(model, optimizer, exchange.plan, staleness, group=exchange.link).serve(20)
        else:
            with StaleWorker(model, exchange.plan, staleness, group=exchange.link) as worker:
                for step in range(20):
                    if stops and (link.rank, step) == (3, 5):
                        time.sleep(60)
                    worker.step(lambda: -model.weight[0, link.rank - 1])
    except ExchangeError as error:
        return str(error)
    finally:
        link.close()
    return [float(weight) for weight in flat(model)]


@pytest.mark.processes
def test_processes_over_gloo(run_processes: Callable[..., list[Any]]) -> None:
    assert run_processes(4, _train_over_gloo, 2, False) == [[20.0] * 3] * 4


@pytest.mark.processes
def test_a_stopped_process_ends_the_others(run_processes: Callable[..., list[Any]]) -> None:
    started = time.monotonic()
    server, first, second, _ = run_processes(4, _train_over_gloo, 2, True, absent=[3])
    assert time.monotonic() - started < 30
    assert server == (
        "serving rank 3 after step 5: rank 0 receiving from rank 3: no progress within 3 s; check that all "
        "ranks run, or use a longer timeout_s"
    )
    assert "rank 1, step 8: the server stopped because rank 3 failed" in first
    assert "rank 2, step 8: the server stopped because rank 3 failed" in second
