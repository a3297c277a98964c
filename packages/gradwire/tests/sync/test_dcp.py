"""Read what dcp.save has written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

import gradwire
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.checkpoint import IN_FLIGHT
from gradwire.sync.dcp import read_ranks

Ranks = Callable[..., list[Any]]
State = dict[str, Any]


def test_a_folder_of_torchs_checkpoint_that_is_damaged_is_one_named_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"nowhere cannot be read: .*; pass a folder that dcp.save"):
        read_ranks(tmp_path / "nowhere", "pipe")
    (tmp_path / ".metadata").touch()
    with pytest.raises(StateError, match="cannot be read: Ran out of input; pass a folder"):
        read_ranks(tmp_path, "pipe")


def saved(folder: Path, run_exchanges: Ranks) -> list[State]:
    """Save two ranks' pipelines as one checkpoint, as their processes would; return their states."""

    def body(exchange: Exchange) -> State:
        torch.manual_seed(3)
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gradwire.PipeSGD(model, optimizer, exchange.plan, group=exchange.link) as pipe:
            for step in range(5):
                x = torch.full((2, 5), float(step + exchange.link.rank))
                pipe.step(lambda x=x: model(x).square().mean())  # type: ignore[misc]
            return pipe.state_dict()

    states = run_exchanges(2, body, Plan(parse("topk:0.25"), pipeline=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a process that is alone
        save({"pipe": {**states[0], **states[1]}, "other": {"x": torch.ones(2)}}, checkpoint_id=folder)
    return states


def test_every_rank_has_what_it_saved(run_exchanges: Ranks, tmp_path: Path) -> None:
    states = saved(tmp_path, run_exchanges)
    found = read_ranks(tmp_path, "pipe")
    assert len(found) == 2
    for rank, (ours, its) in enumerate(zip(states, found, strict=True)):
        assert {name.partition("/")[2].partition("/")[0] for name in its if IN_FLIGHT not in name} == {
            f"rank{rank}"
        }
        assert set(its) == set(ours)
        for name, value in ours.items():
            same = torch.equal(its[name], value) if isinstance(value, torch.Tensor) else its[name] == value
            assert same, name


def test_a_name_under_which_no_pipeline_was_saved_is_refused(run_exchanges: Ranks, tmp_path: Path) -> None:
    saved(tmp_path, run_exchanges)
    for name in ("pip", "other"):
        with pytest.raises(StateError) as caught:
            read_ranks(tmp_path, name)
        assert str(caught.value) == (
            f"expected the state of a PipeSGD under {name!r} in {tmp_path}, got none; pass the name that "
            "dcp.save was called with"
        )
