"""Ranks that have run out of batches: who is asked to divide by the others, and how many those are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.ddp import reducer
from gradwire.ddp.reducer import count_active, divides_by_active, has_joined
from gradwire.errors import AttachError
from gradwire.exchange import Exchange
from gradwire.sync.gradient_sync import GradientSync
from support.fake_buckets import sync_over

Ranks = Callable[..., list[Any]]


def joining(enable: bool, first: bool, initial: bool) -> nn.Module:
    """Return a model with what DDP's ``join`` sets."""
    model: Any = nn.Linear(1, 1)
    model._join_config = SimpleNamespace(enable=enable, is_first_joinable=first)
    model._divide_by_initial_world_size = initial
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("enable", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_only_the_first_model_of_a_join_divides_by_those_who_have_batches(
    enable: bool, first: bool, initial: bool
) -> None:
    assert divides_by_active(joining(enable, first, initial)) == (enable and first and not initial)


def test_without_a_join_nobody_does() -> None:
    assert not divides_by_active(nn.Linear(1, 1))


@pytest.mark.parametrize("gone", [(), (1,), (0, 2), (0, 1, 2)])
def test_all_ranks_count_those_who_have_not_joined(
    gone: tuple[int, ...], run_exchanges: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shadow(sync: GradientSync) -> int:
        """Stand where DDP calls the hook for a rank that has joined."""
        return count_active(sync)

    monkeypatch.setattr(reducer, "_SHADOWS", shadow)

    def body(exchange: Exchange) -> tuple[int, float]:
        sync = sync_over(exchange)
        active = shadow(sync) if exchange.link.rank in gone else count_active(sync)
        sync.close()
        assert sync.context.ledger is not None
        return active, sync.context.ledger.summary().buckets["join"].cost.raw_nbytes

    results = run_exchanges(3, body)
    assert {active for active, _ in results} == {max(3 - len(gone), 1)}
    assert sum(raw for _, raw in results) > 0


def test_nobody_has_joined_outside_of_ddps_own_call() -> None:
    assert not has_joined()


def test_a_torch_that_hides_who_has_joined_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "_SHADOWS", None)
    with pytest.raises(AttachError) as caught:
        has_joined()
    assert str(caught.value) == (
        f"gradwire cannot detect joined ranks with torch {torch.__version__}; omit "
        "divide_by_initial_world_size=False from join, so that join divides by the number of all ranks"
    )
