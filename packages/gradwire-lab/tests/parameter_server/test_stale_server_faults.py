from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from torch import nn

from gradwire.codecs import parse
from gradwire.errors import ExchangeError, LinkError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.faulty_link import Fault, FaultyLink
from support.servers import STAR, run_all, sgd

Ranks = Callable[..., list[Any]]


def _until_it_fails(
    link: Link, staleness: int, before_step: Callable[[int, int], None], steps: int = 50
) -> float:
    """Train on one weight; a rank that gives up closes its link like a user's ``finally``."""
    model, exchange = nn.Linear(1, 1, bias=False), Exchange(link, STAR)
    nn.init.zeros_(model.weight)
    try:
        if link.rank == 0:
            server = StaleServer(
                model, sgd(model, lr=float(link.world - 1)), exchange.plan, staleness, group=exchange.link
            )
            try:
                server.serve(steps)
            except ExchangeError:
                assert server.exchange.failure is not None, "the exchange alone keeps the reason"
                with pytest.raises(ExchangeError, match=re.escape(server.exchange.failure)):
                    server.serve(1)
                with pytest.raises(
                    ExchangeError, match=r"this server has failed \(.*\); create a new server"
                ):
                    server.serve(1)
                before_step(0, round(model.weight.item()))
                assert model.weight.item() == round(model.weight.item()), "whole gradients only"
                raise
            return model.weight.item()
        worker = StaleWorker(model, exchange.plan, staleness, group=exchange.link)
        for step in range(steps):
            before_step(link.rank, step)
            worker.step(lambda: -model.weight.sum())
        worker.drain()
        return model.weight.item()
    finally:
        if link.rank != 2:
            link.close()


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_stopped_worker_ends_all_others_within_the_timeout(staleness: int) -> None:
    end, applied = threading.Event(), []

    def before_step(rank: int, step: int) -> None:
        if rank == 0:
            applied.append(step)
        if (rank, step) == (2, 4):
            end.wait(20)
            raise KeyboardInterrupt

    sgd(nn.Linear(1, 1))  # loads what the first optimizer of a process needs
    results: list[Any] = [None] * 4

    def work(rank: int, link: Link) -> None:
        try:
            results[rank] = _until_it_fails(link, staleness, before_step)
        except BaseException as error:
            results[rank] = error

    started = time.monotonic()
    threads = [Thread(target=work, args=pair, daemon=True) for pair in enumerate(loopback(4, timeout_s=1.0))]
    for thread in threads:
        thread.start()
    for rank in (0, 1, 3):
        threads[rank].join(10)
    took_s = time.monotonic() - started
    end.set()
    threads[2].join(10)
    server, first, _, third = results
    assert isinstance(server, ExchangeError)
    assert "serving rank 2 after step 4: rank 0 receiving from rank 2: no progress" in str(server)
    assert isinstance(server.__cause__, LinkTimeoutError)
    for rank, error in ((1, first), (3, third)):
        assert isinstance(error, ExchangeError)
        assert re.fullmatch(
            rf"rank {rank}, step {5 + staleness}: the server stopped because rank 2 failed; see the error .*",
            str(error),
        )
    assert 0.9 < took_s < 9
    held_by_each = 4 + staleness + 1
    assert applied == [3 * 4 if staleness == 0 else 4 + 2 * held_by_each]
    assert not server_threads()


def test_a_worker_that_is_gone_ends_all_at_once() -> None:
    def before_step(rank: int, step: int) -> None:
        if (rank, step) == (1, 3):
            raise RuntimeError("out of memory")

    started = time.monotonic()
    results = run_all(lambda link: _until_it_fails(link, 1, before_step), loopback(3, timeout_s=20))
    assert time.monotonic() - started < 10
    assert "serving rank 1 after step 3" in str(results[0])
    assert isinstance(results[0].__cause__, LinkError)
    assert str(results[1]) == "out of memory"
    assert "the server stopped because rank 1 failed" in str(results[2])


def test_a_dead_server_ends_the_workers_within_the_timeout() -> None:
    def body(link: Link) -> None:
        model, exchange = nn.Linear(1, 1, bias=False), Exchange(link, STAR)
        if link.rank == 0:
            server = StaleServer(model, sgd(model), exchange.plan, 1, group=exchange.link)
            server.synchronise()
            return
        StaleWorker(model, exchange.plan, 1, group=exchange.link).step(lambda: model.weight.sum())

    started = time.monotonic()
    server, *workers = run_all(body, loopback(3, timeout_s=0.5))
    assert time.monotonic() - started < 5
    assert server is None
    for rank, error in enumerate(workers, start=1):
        assert isinstance(error, ExchangeError)
        where = f"rank {rank}, step 1: rank {rank} sending to rank 0"
        assert str(error).startswith(f"{where}: no progress within 0.5 s; check")


@pytest.mark.parametrize(
    ("kind", "step", "reason"),
    [
        ("corrupt", 2, "the header's checksum is wrong"),
        ("corrupt", 3, "the payload's checksum is wrong"),
        ("truncate", 2, "truncated: expected a header of 32 bytes"),
        ("truncate", 3, "truncated: expected a payload of 160 bytes"),
        ("drop", 2, "out of order: expected frame 2, got frame 3"),
        ("drop", 3, "no progress within 0.5 s"),
        ("duplicate", 1, "out of order: expected frame 2, got frame 1"),
    ],
)
def test_a_damaged_push_is_never_applied(kind: Any, step: int, reason: str) -> None:
    """Frames 0 and 1 are the first push, 2 the message of the second and 3 its gradient.

    Two frames before them tell how the worker's model is laid out.
    """
    weights: list[float] = []

    def body(link: Link) -> None:
        model = nn.Linear(40, 1, bias=False)
        nn.init.zeros_(model.weight)
        faulty = FaultyLink(link, [Fault(kind, rank=1, step=2 + step, bit=600)])
        try:
            if link.rank == 0:
                try:
                    StaleServer(model, sgd(model, lr=1.0), STAR, 1, group=link).serve(4)
                finally:
                    weights.extend(model.weight.flatten().tolist())
            else:
                worker = StaleWorker(model, STAR, 1, group=faulty)
                for _ in range(4):
                    worker.step(lambda: -model.weight.sum())
        finally:
            link.close()

    links = loopback(2, timeout_s=0.5)
    vars(links[1])["timeout_s"] = 10.0  # so that it is the server who notices
    server, worker = run_all(body, links)
    assert isinstance(server, ExchangeError)
    assert isinstance(worker, ExchangeError)
    assert reason in str(server)
    assert "serving rank 1 after step 1" in str(server)
    assert weights == [1.0] * 40


def test_an_error_of_the_server_reaches_all_workers() -> None:
    def schedule(step: int) -> None:
        if step == 2:
            raise RuntimeError("no rate for this step")

    def body(link: Link) -> None:
        model, exchange = nn.Linear(1, 1, bias=False), Exchange(link, STAR)
        if link.rank == 0:
            StaleServer(model, sgd(model), exchange.plan, 1, group=exchange.link).serve(9, schedule)
        worker = StaleWorker(model, exchange.plan, 1, group=exchange.link)
        for _ in range(9):
            worker.step(lambda: model.weight.sum())

    server, *workers = run_all(body, loopback(3, timeout_s=5))
    assert (type(server), str(server)) == (RuntimeError, "no rate for this step")
    for error in workers:
        assert "the server stopped because of its own error; see the error" in str(error)
    assert not server_threads()


def test_an_error_in_the_forward_pass_sends_nothing_and_the_step_may_be_repeated(
    run_exchanges: Ranks,
) -> None:
    def body(exchange: Exchange) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        if exchange.link.rank == 0:
            StaleServer(model, sgd(model, lr=1.0), exchange.plan, 1, group=exchange.link).serve(2)
            return model.weight.item()
        with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
            worker.step(lambda: -model.weight.sum())
            with pytest.raises(ZeroDivisionError):
                worker.step(lambda: model.weight.sum() / (1 // 0))
            worker.step(lambda: -model.weight.sum())
            assert worker.steps_done == 2
        with pytest.raises(ExchangeError, match="rank 1: this StaleWorker is closed"):
            worker.step(lambda: model.weight.sum())
        return model.weight.item()

    assert run_exchanges(2, body, STAR) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"staleness": 2}, "expected the server's staleness of 1 on rank 1, got 2"),
        ({"features": 3}, "expected the server's number of weights of 4 on rank 1, got 3"),
        ({"steps": 2}, "expected PUSH at step 3 from rank 1, got DRAIN at step 2"),
        ({"steps": 5}, "expected DRAIN at step 3 from rank 1, got PUSH at step 4"),
        ({"codec": "quantize:8"}, "the codec differs: expected identity, got quantize"),
    ],
)
def test_ranks_that_disagree_are_told_how(others: dict[str, Any], reason: str) -> None:
    def body(link: Link) -> None:
        told: dict[str, Any] = {"staleness": 1, "features": 4, "steps": 3, "codec": "identity"} | (
            others if link.rank else {}
        )
        model = nn.Linear(told["features"], 1, bias=False)
        exchange = Exchange(link, Plan(codec=parse(told["codec"]), algorithm="star"))
        if link.rank == 0:
            server = StaleServer(model, sgd(model), exchange.plan, 1, group=exchange.link)
            server._synchronised = True  # which would notice some of this first
            server.serve(3)
            return
        worker = StaleWorker(model, exchange.plan, told["staleness"], group=exchange.link)
        worker._synchronised = True
        for _ in range(told["steps"]):
            worker.step(lambda: model.weight.sum())
        worker.drain()

    server, worker = run_all(body, loopback(2, timeout_s=2))
    assert isinstance(server, ExchangeError)
    assert isinstance(worker, ExchangeError)
    assert reason in str(server)


def server_threads() -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gradwire server")]
