"""What cells name is exchanged: the codec, the ranks, and the two algorithms of an aggregator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.links import loopback
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.experiments.experiment import Reporter
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.hosts.exchanges import (
    SHORT_NBYTES,
    ExchangeOptions,
    exchange_of,
    exchanging,
    line_of,
    rate,
)
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

    def measure(module: str, cells: Any, report: Callable[[Any], None], more: dict[str, Any]) -> None:
        asked.extend((module, cells, more))
        report({**cells[0], "seconds": [1.0]})

    monkeypatch.setattr(exchanges, "measure_cells", measure)
    options, rows = ExchangeOptions((2,), 1600, 8, repeats=3), list[Any]()
    run = exchanging(0.5, 1 << 20, lambda row: {"twice": 2 * row["hosts"]})
    run(options, [{"hosts": 2}], (), Reporter(rows.append, lambda _text: None))
    more = {"most": 3, "budget_s": 0.5, "line_nbytes": 1 << 20}
    assert asked == [exchanges.__name__, [{"hosts": 2}], more]
    assert rows == [{"hosts": 2, "seconds": [1.0], "twice": 4}]
    assert {*more} < {*inspect.signature(exchanges.measure).parameters}


def test_options_may_limit_the_exchanges_and_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(exchanges, "measure_cells", lambda *words: asked.append(words[-1]))
    options = SimpleNamespace(most=5, budget_s=2.0)
    exchanging(None, most="most")(options, [{"hosts": 2}], (), asked.append)
    assert asked == [{"most": 5, "budget_s": 2.0, "line_nbytes": None}]


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
    options = ExchangeOptions((3,), 3000, 400_000, repeats=2)
    exchanging(0.5, SHORT_NBYTES)(options, cells, (), found.append)
    assert [{name: row[name] for name in cell} for cell, row in zip(cells, found, strict=True)] == cells
    for row in found:
        assert 1 <= len(row["seconds"]) <= 2
        assert row["processor_s"] > 0
        assert 1e7 < row["line_nbytes_per_s"] < 1.5e8
        assert row["cores"] >= 1
    # Two send half of the bytes twice; the burst passes at once.
    assert min(found[3]["seconds"]) >= 0.5 * 400_000 / found[3]["line_nbytes_per_s"]
