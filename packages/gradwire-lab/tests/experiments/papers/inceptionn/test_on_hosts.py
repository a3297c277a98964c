"""Trainings of hosts, whose ranks are threads here, beside the training of one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock
from typing import Any

import pytest
import torch

from gradwire.links import Link, loopback
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.papers.inceptionn import training as networks
from gradwire_lab.experiments.papers.inceptionn.figure_12 import COMPRESSED, INC, TREE, WA, WAYS
from gradwire_lab.experiments.papers.inceptionn.figure_12 import on_hosts as with_what_hosts_need
from gradwire_lab.experiments.papers.inceptionn.training import BATCH, train

NETWORK, STEPS, SEED = "HDC, 3 layers, He", 12, 2


class Ranks:
    """Ranks of a testbed, as threads."""

    def __init__(self, rank: int, link: Link, meeting: Barrier, shared: dict[int, Any]) -> None:
        self.rank, self.world, self.link = rank, link.world, link
        self._meeting, self._shared = meeting, shared
        self.rows: list[dict[str, Any]] = []

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        self._shared[self.rank] = value
        self._meeting.wait()
        values = [self._shared[rank] for rank in range(self.world)]
        self._meeting.wait()
        return values

    def report(self, cell: dict[str, Any], figures: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append({**cell, **figures})


def row_of(run: str) -> dict[str, Any]:
    """Train on threads; return rank 0's row."""
    cell = with_what_hosts_need({"run": run, "network": NETWORK, "data": "digits", "seed": SEED}, "1gbit")
    links, shared = loopback(WAYS[run].hosts, 30.0), dict[int, Any]()
    meeting = Barrier(len(links), timeout=30.0)
    ranks = [Ranks(rank, link, meeting, shared) for rank, link in enumerate(links)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(len(links)) as pool:
            cells = [{**cell, "steps": STEPS, "batch": BATCH}]
            for each in [pool.submit(networks.measure, own, cells) for own in ranks]:  # type: ignore[arg-type]
                each.result()
    finally:
        torch.set_num_threads(threads)
        for link in links:
            link.close()
    return ranks[0].rows[0]


@pytest.fixture(autouse=True)
def one_builds_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads take turns at torch's random numbers, of which each process of a host has its own."""
    turn, build = Lock(), networks.build

    def built(*what: Any) -> torch.nn.Module:
        with turn:
            return build(*what)

    monkeypatch.setattr(networks, "build", built)


@pytest.fixture(scope="module")
def alone() -> float:
    """The accuracy of the same training in one process."""
    return train(dataset("digits"), NETWORK, STEPS, SEED)[STEPS]


@pytest.mark.parametrize("run", [WA, TREE, INC])
def test_all_exact_ways_learn_what_one_process_learns(run: str, alone: float) -> None:
    row = row_of(run)
    assert alone > 0.4
    assert row["accuracy"] == pytest.approx(alone, abs=0.01), "sums differ by their order alone"
    assert len(row["step_s"]) == len(row["compute_s"]) == STEPS - 1
    assert all(each > 0 for each in (*row["compute_s"], *row["step_s"]))
    assert row["nbytes"] == 4 * (64 * 500 + 500 + 500 * 500 + 500 + 5000 + 10)


def test_nics_lose_what_the_codec_loses_in_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that let NICs compress send what the codec leaves, so that they end with the same weights."""

    @contextmanager
    def marked(ranks: Ranks, tos: int) -> Iterator[Link]:
        monkeypatch.setattr(type(ranks.link), "tos", tos)
        yield ranks.link

    monkeypatch.setattr(Ranks, "linked", marked, raising=False)
    software, _, in_nics = (row_of(run)["accuracy"] for run in COMPRESSED)
    assert software == in_nics
