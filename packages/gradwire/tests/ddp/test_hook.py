"""``gradwire.attach`` with one rank: what it takes and refuses, and what it leaves behind."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType, HashStore, PrefixStore, Store
from torch.distributed.distributed_c10d import _world
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import gradwire
from gradwire.codecs import DEFAULT_CODEC
from gradwire.ddp.attach import gradwire_hook
from gradwire.errors import AttachError, ExchangeError, SpecError, StateError, TensorError
from gradwire.sync.checkpoint import ATTACHED, ATTACHED_SHARDS, RankState, pack
from gradwire.sync.ledger.ledger import Ledger
from support.fake_buckets import FakeBucket
from support.saved_residuals import residuals_in


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gradwire")]


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == []


def make_model() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(4, 2))


def backward(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def test_a_model_that_is_no_ddp_is_refused() -> None:
    with pytest.raises(AttachError, match="expected a DistributedDataParallel, got a Linear; wrap"):
        gradwire.attach(nn.Linear(4, 2))  # type: ignore[arg-type]


def test_a_block_closes_it_at_its_end_also_after_an_error() -> None:
    model = make_model()
    with gradwire.attach(model, "fp8") as attached:
        backward(model)
        assert repr(attached) == "<Attached, 1 steps, by <Exchange of fp8 over ring, rank 0 of 1>>"
        assert repr(attached.ledger) == "<Ledger of rank 0: 1 steps, 1 exchanges, ratio 1.00>"
    assert repr(attached).startswith("<Attached, closed, by ")
    with pytest.raises(ExchangeError):
        backward(model)
    attached.close()
    with pytest.raises(ZeroDivisionError), gradwire.attach(make_model()) as attached:
        raise ZeroDivisionError
    assert repr(attached).startswith("<Attached, closed, by ")


def test_a_second_hook_is_refused_and_the_first_goes_on() -> None:
    model = make_model()
    attached = gradwire.attach(model, "identity")
    with pytest.raises(AttachError, match="got one that is attached; use the result of the first"):
        gradwire.attach(model)
    with pytest.raises(
        RuntimeError,
        match=r"only one communication hook, .* gradwire\.attach .* remove the call register_comm",
    ):
        model.register_comm_hook(None, gradwire_hook)
    backward(model)
    assert attached.ledger.summary().steps == 1
    attached.close()


def test_training_on_nan_is_in_the_summary() -> None:
    model = make_model()
    attached = gradwire.attach(model, "fp8")
    backward(model)
    assert "NaN" not in str(attached.ledger.summary())
    model(torch.full((3, 4), torch.nan)).sum().backward()
    assert "1 of 2 exchanges returned NaN or infinity, most often bucket 0 (1 time)" in str(
        attached.ledger.summary()
    )
    attached.close()


def test_a_hook_of_the_user_s_or_of_torch_s_is_refused() -> None:
    def own_hook(state: object, bucket: Any) -> Any:
        del state
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    own_hook.__annotations__.clear()
    model = make_model()
    model.register_comm_hook(None, own_hook)
    with pytest.raises(AttachError, match=r"without a communication hook, got one with .*own_hook"):
        gradwire.attach(model)
    backward(model)

    builtin = make_model()
    builtin._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)  # type: ignore[no-untyped-call]
    with pytest.raises(AttachError, match="without a communication hook, got one with a builtin hook"):
        gradwire.attach(builtin)
    backward(builtin)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"plan": "fp17"}, "unknown codec 'fp17'"),
        ({"plan": 17}, "expected a Plan, a codec, its spec or the path of a plan's file for plan, got 17"),
        ({"plan": "plan.json"}, r"the plan plan\.json cannot be read"),
        ({"plan": Path("plan")}, "the plan plan cannot be read"),
        (
            {"plan": gradwire.Plan(pipeline=2)},
            r"attach: expected a plan with pipeline=1, got pipeline=2; .* gradwire\.PipeSGD",
        ),
        ({"timeout_s": 0}, "expected timeout_s above 0 and at most 1e\\+06 seconds, got 0"),
        ({"timeout_s": float("nan")}, "got nan"),
    ],
)
def test_what_cannot_be_is_refused_and_can_be_tried_again(arguments: dict[str, Any], reason: str) -> None:
    model = make_model()
    with pytest.raises(SpecError, match=reason):
        gradwire.attach(model, **arguments)
    gradwire.attach(model).close()


def test_every_way_to_name_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gradwire.Plan(gradwire.parse("bfp:7x16"), "tree", residual=True)
    plan.save(tmp_path / "plan.json")
    plan.save(tmp_path / "plan")
    monkeypatch.chdir(tmp_path)
    named: list[Any] = [plan, "plan.json", "./plan", Path("plan"), str(tmp_path / "plan")]
    for name in named:
        attached = gradwire.attach(make_model(), name)
        assert attached.plan == plan
        attached.close()
    codec = gradwire.parse("quantize:8")
    same: list[Any] = [codec, "quantize:8"]
    for name in same:
        attached = gradwire.attach(make_model(), name)
        assert attached.plan == gradwire.Plan(codec)
        attached.close()
    attached = gradwire.attach(make_model())
    assert attached.plan == gradwire.Plan(gradwire.parse(DEFAULT_CODEC), residual=False), "it will choose"
    attached.close()


def test_sparse_gradients_are_refused_before_training() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)))
    with pytest.raises(AttachError, match=r"sparse gradients from 0; create the embedding with sparse=False"):
        gradwire.attach(model)


def test_a_sparse_bucket_and_one_out_of_order_are_refused_for_good() -> None:
    fine = torch.ones(3)
    for bucket, kind, reason in (
        (FakeBucket(0, fine.to_sparse()), TensorError, "dense gradients in bucket 0, got sparse"),
        (FakeBucket(2, fine), ExchangeError, "expected bucket 0 from DDP, got bucket 2"),
    ):
        model = make_model()
        attached = gradwire.attach(model)
        state: Any = model._comm_hooks[0][1]
        with pytest.raises(kind, match=reason):
            gradwire_hook(state, bucket)
        with pytest.raises(ExchangeError, match=f"failed earlier .*{reason}"):
            gradwire_hook(state, FakeBucket(0, fine))
        attached.close()


def test_buckets_are_counted_and_an_empty_one_is_a_bypass(caplog: pytest.LogCaptureFixture) -> None:
    ledger, model = Ledger(0), make_model()
    attached = gradwire.attach(model, "identity", ledger=ledger)
    assert attached.ledger is ledger
    first, second = torch.arange(3.0), torch.arange(5.0)
    state: Any = model._comm_hooks[0][1]
    futures = [
        gradwire_hook(state, FakeBucket(0, first)),
        gradwire_hook(state, FakeBucket(1, torch.ones(0))),
        gradwire_hook(state, FakeBucket(2, second, last=True)),
    ]
    assert [future.wait().tolist() for future in futures] == [[0, 1, 2], [], [0, 1, 2, 3, 4]]
    summary = ledger.summary()
    assert {name: counts.gradient_nbytes for name, counts in summary.buckets.items()} == {
        "bucket 0": 12,
        "bucket 2": 20,
    }
    assert {reason: bypass.count for reason, bypass in summary.bypasses.items()} == {"it is empty": 1}
    assert summary.steps == 1
    assert "compression did not run for bucket 1" in caplog.text
    attached.close()


def test_after_close_backward_is_refused_and_evaluation_is_not() -> None:
    model = make_model()
    attached = gradwire.attach(model)
    backward(model)
    attached.close()
    attached.close()
    with pytest.raises(ExchangeError, match="exchange is closed; wrap the module"):
        backward(model)
    with torch.no_grad():
        model(torch.ones(3, 4))
    with model.no_sync():
        backward(model)


def test_the_thread_ends_with_the_model() -> None:
    model = make_model()
    gradwire.attach(model)
    backward(model)
    assert len(threads()) == 1
    del model
    gc.collect()
    deadline = time.monotonic() + 10
    while threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_error_of_the_user_s_in_backward_is_the_user_s() -> None:
    model = make_model()
    attached = gradwire.attach(model)

    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError("mine")

    handle = model.module.weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        backward(model)
    handle.remove()
    attached.close()


def test_an_error_on_the_communication_thread_ends_backward_and_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model()
    attached = gradwire.attach(model)
    before = model.module.weight.detach().clone()

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(gradwire.Exchange, "run", fail)
    with pytest.raises(MemoryError, match="no room") as caught:
        backward(model)
    assert "averaged bucket 0 of step 1" in caught.value.__notes__[0]
    monkeypatch.undo()
    with pytest.raises(ExchangeError, match=r"failed earlier \(no room\)"):
        backward(model)
    assert torch.equal(model.module.weight, before)
    attached.close()


def test_a_state_goes_out_and_in_and_a_stranger_s_is_refused() -> None:
    model = make_model()
    attached = gradwire.attach(model, gradwire.Plan(gradwire.parse("topk:0.1")))
    backward(model)
    state = attached.state_dict()
    # a world of one encodes nothing, so nothing is lost
    assert {key: tensor.numel() for key, tensor in residuals_in(state).items()} == {"weight": 8, "bias": 2}
    attached.close()
    again = gradwire.attach(make_model(), gradwire.Plan(gradwire.parse("topk:0.1")))
    state["gradwire/rank0/residual/weight"][3] = 5.0
    with pytest.raises(StateError, match="gradwire/rank0/residual/weight is damaged: its checksum differs"):
        again.load_state_dict(state)
    changed = RankState(0, 1, 3, ATTACHED, residuals=residuals_in(state))
    again.load_state_dict(pack(changed))
    assert residuals_in(again.state_dict())["weight"].tolist() == [0, 0, 0, 5, 0, 0, 0, 0]
    of_others = {
        "got one of 2 ranks; .*redivide": replace(changed, world=2),
        r"got a state of rank 1 \(of attach\)": replace(changed, rank=1),
        "with the key 'gradwire/rank0/attached', got a state of rank 0;": replace(changed, method="PipeSGD"),
        r"got a state of rank 0 \(of attach_fsdp\)": replace(changed, method=ATTACHED_SHARDS),
    }
    for reason, other in of_others.items():
        with pytest.raises(StateError, match=reason):
            again.load_state_dict(pack(other))
    again.close()


def test_a_model_that_leaves_buckets_out_is_refused() -> None:
    model = make_model()
    model.skip_all_reduce_unused_params = True
    with pytest.raises(AttachError, match="skip_all_reduce_unused_params=False, got True"):
        gradwire.attach(model, "identity")


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "AveragedModel"])
def test_a_copy_is_refused_to_train_until_it_is_attached_itself(how: str) -> None:
    model = make_model()
    attached = gradwire.attach(model, "identity")
    backward(model)
    makers: dict[str, Callable[[], Any]] = {
        "deepcopy": lambda: copy.deepcopy(model),
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
        "AveragedModel": lambda: AveragedModel(model).module,
    }
    copied = makers[how]()
    with torch.no_grad():
        assert torch.equal(copied(torch.ones(3, 4)), model(torch.ones(3, 4)))
    for attempt in ("none", "one that fails"):
        if attempt != "none":
            with pytest.raises(SpecError):
                gradwire.attach(copied, "fp17")
        with pytest.raises(ExchangeError, match=r"got an unattached copy, whose gradients.*; attach the c"):
            copied(torch.ones(3, 4))
    again = gradwire.attach(copied, "identity")
    backward(copied)
    backward(model)
    assert [each.ledger.summary().steps for each in (again, attached)] == [1, 2]
    assert not torch.equal(copied.module.weight.grad, torch.zeros(2, 4))
    again.close()
    backward(model)
    attached.close()


def test_weights_are_averaged_as_without_gradwire() -> None:
    model = make_model()
    attached = gradwire.attach(model, "identity")
    averaged: Any = AveragedModel(model)
    with torch.no_grad():
        for value in (1.0, 4.0):
            model.module.weight.fill_(value)
            averaged.update_parameters(model)
        assert torch.equal(averaged.module.module.weight, torch.full((2, 4), 2.5))
        averaged(torch.ones(3, 4))
    attached.close()


def test_a_group_whose_backend_has_no_store_gives_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch keeps of a group over MPI; this build of torch has none."""
    model, group = make_model(), dist.group.WORLD
    assert group is not None
    monkeypatch.setitem(_world.pg_map, group, ("mpi", PrefixStore("default_pg", Store())))
    reason = (
        "expected a group with a store for rendezvous, got the backend 'mpi' without one; "
        "initialise torch.distributed with gloo or nccl, or use gradwire.links.MpiLink"
    )
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (AttachError, lambda: gradwire.attach(model)),
        (ExchangeError, lambda: gradwire.all_reduce(torch.ones(3))),
        (ExchangeError, lambda: gradwire.PipeSGD(model.module, torch.optim.SGD(model.parameters()))),
    ]
    for kind, call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == reason
    monkeypatch.undo()
    gradwire.attach(model).close()


def test_a_step_s_begin_may_be_waited_for_as_long_as_the_group_allows() -> None:
    group = dist.new_group([0], timeout=timedelta(seconds=77))
    cases: list[tuple[dict[str, Any], tuple[float, float]]] = [
        ({}, (30.0, 77.0)),
        ({"timeout_s": 100.0}, (100.0, 100.0)),
        ({"timeout_s": 5.0, "begin_timeout_s": 6.0}, (5.0, 6.0)),
    ]
    for options, wanted in cases:
        attached = gradwire.attach(DistributedDataParallel(nn.Linear(2, 1), process_group=group), **options)
        context = attached._sync.context
        assert (context.timeout_s, context.begin_timeout_s) == wanted
        attached.close()
    with pytest.raises(SpecError, match=r"expected begin_timeout_s above 0 and at most .*, got -1"):
        gradwire.attach(make_model(), begin_timeout_s=-1)
