"""Read what dcp.save has written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.checkpoint import IN_FLIGHT, unpack
from gradwire.sync.dcp import read_ranks
from support.saved_residuals import residuals_in
from support.sharded import Case, loss_of, make_model, shard

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
            f"expected a state of gradwire under {name!r} in {tmp_path}, got none; pass the state's key in "
            "the dictionary that dcp.save saved"
        )


LOSSY = Plan(parse("topk:0.25"))  # keeps residuals


def attached_model(kind: str) -> tuple[Any, gradwire.Attached]:
    model = make_model()
    if kind == "DDP":
        replicas = DistributedDataParallel(model)
        return replicas, gradwire.attach(replicas, LOSSY)
    shard(model, Case(mesh=(2, 1) if kind == "HSDP" else None))
    return model, gradwire.attach_fsdp(model, LOSSY)


def trained(model: Any, steps: range) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [
        each.to_local() if hasattr(each, "to_local") else each.clone() for each in model.state_dict().values()
    ]


def saved_and_resumed(kind: str, folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor], list[State]]:
    """Save a run in a folder, and return the weights of the run and of its resumption, and the states."""
    model, attached = attached_model(kind)
    trained(model, range(3))
    before = residuals_in(attached.state_dict())
    save({"model": get_model_state_dict(model), "gradwire": attached}, checkpoint_id=folder)
    whole = trained(model, range(3, 6))
    attached.close()
    model, attached = attached_model(kind)
    weights = get_model_state_dict(model)
    load({"model": weights, "gradwire": attached}, checkpoint_id=folder)
    set_model_state_dict(model, weights)
    after = residuals_in(attached.state_dict())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], each) for key, each in before.items())
    resumed = trained(model, range(3, 6))
    attached.close()
    return whole, resumed, read_ranks(folder, "gradwire")


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["DDP", "FSDP", "HSDP"])
def test_an_attached_model_resumes_from_it_with_each_ranks_residuals(
    kind: str, run_processes: Ranks, tmp_path: Path
) -> None:
    residuals = []
    for rank, (whole, resumed, states) in enumerate(run_processes(2, saved_and_resumed, kind, tmp_path)):
        # DDP rebuilds its buckets after the first step, so their parts of a sum differ.
        same = partial(torch.allclose, atol=0.1) if kind == "DDP" else torch.equal
        assert all(map(same, whole, resumed))
        residuals.append(torch.cat([*residuals_in(states[rank]).values()]))
    assert residuals[0].any()
    assert not torch.equal(*residuals)
    if kind == "DDP":
        (alone,) = gradwire.redivide(states, 1)
        merged = torch.cat([*residuals_in(alone).values()])
        assert torch.allclose(merged, residuals[0] + residuals[1], rtol=1e-6)


def test_a_tensor_that_a_new_object_lacks_is_named_with_a_remedy(
    run_exchanges: Ranks, tmp_path: Path
) -> None:
    """FSDP omits parameters without a gradient, so lengths of residuals are known only after a step."""
    state = saved(tmp_path, run_exchanges)[0]
    del state["gradwire/rank0/residual/gradient"]
    with pytest.raises(StateError, match=r"residual/gradient in the .*, got nothing; .*dcp\.read_ranks"):
        unpack(state, 0, 2)
