"""What cells name is exchanged: the codec, the ranks, and the two algorithms of an aggregator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from gradwire.links import loopback
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.hosts.exchanges import exchange_of, line_of, rate, time_exchanges
from support.beds import needs_namespaces


def exchanged(cell: dict[str, Any], world: int = 3) -> list[torch.Tensor]:
    """Return each rank's bucket after an exchange; before, rank r has r + 0.3 in it."""
    links = loopback(world, 20.0)
    buckets = [torch.full((6,), rank + 0.3) for rank in range(world)]
    pairs = zip((exchange_of(cell, link) for link in links), buckets, strict=True)
    with ThreadPoolExecutor(world) as pool:
        for each in [pool.submit(exchange, bucket) for exchange, bucket in pairs]:
            each.result()
    for link in links:
        link.close()
    return buckets


def test_a_cell_s_algorithm_averages_with_its_codec() -> None:
    exact = exchanged({"algorithm": "ring"})
    assert all(torch.allclose(bucket, torch.full((6,), 1.3)) for bucket in exact)
    coarse = exchanged({"algorithm": "ring", "codec": "truncate:24"})
    assert all(torch.equal(bucket, coarse[0]) for bucket in coarse)
    assert not torch.allclose(coarse[0], exact[0]), "the codec is in the exchange"


def test_an_aggregator_s_sum_goes_down_another_way() -> None:
    ups_and_downs = exchanged({"algorithm": "star", "down": "tree"})
    assert all(torch.allclose(bucket, torch.full((6,), 3.9)) for bucket in ups_and_downs)


def test_a_rank_without_a_link_does_nothing() -> None:
    bucket = torch.ones(3)
    exchange_of({"algorithm": "ring"}, None)(bucket)
    assert torch.equal(bucket, torch.ones(3))


def test_all_hosts_share_a_rate() -> None:
    assert [rate(hosts, 1600) for hosts in (2, 16)] == ["800mbit", "100mbit"]


def test_the_line_of_formulas_is_the_measured_one() -> None:
    row = {"line_latency_s": 0.5, "line_nbytes_per_s": 10.0}
    assert line_of(row) == AlphaBetaGamma(0.5, 0.1)


def test_hosts_get_the_cells_and_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(exchanges, "measure_cells", lambda *words: asked.extend(words))
    report: Callable[[Any], None] = asked.append
    time_exchanges([{"hosts": 2}], report, 3, 0.5, 1 << 20)
    more = {"most": 3, "budget_s": 0.5, "line_nbytes": 1 << 20}
    assert asked == [exchanges.__name__, [{"hosts": 2}], report, more]
    assert {*more} < {*inspect.signature(exchanges.measure).parameters}


@pytest.mark.processes
@needs_namespaces
def test_the_first_hosts_exchange_while_the_others_wait() -> None:
    found: list[Any] = []
    network = {"hosts": 3, "rate": "1gbit", "nbytes": 400_000}
    cells = [
        {"algorithm": "ring", **network},
        {"algorithm": "star", "down": "tree", **network},
        {"algorithm": "ring", "ranks": 2, "codec": "truncate:16", **network},
        {"algorithm": "butterfly", "ranks": 2, **network},
    ]
    time_exchanges(cells, found.append, 2, 0.5, exchanges.SHORT_NBYTES)
    assert [{name: row[name] for name in cell} for cell, row in zip(cells, found, strict=True)] == cells
    for row in found:
        assert 1 <= len(row["seconds"]) <= 2
        assert row["processor_s"] > 0
        assert 1e7 < row["line_nbytes_per_s"] < 1.5e8
        assert row["cores"] >= 1
    # Two send half of the bytes twice; the burst passes at once.
    assert min(found[3]["seconds"]) >= 0.5 * 400_000 / found[3]["line_nbytes_per_s"]
