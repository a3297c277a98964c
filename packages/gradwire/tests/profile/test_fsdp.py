from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from gradwire.profile import session as fsdp
from gradwire.profile.session import FsdpWatch, noted
from gradwire.profile.settings import Settings


class Comm:
    """Does what a collective does, in a hundredth of a second."""

    def __init__(self) -> None:
        self.called: list[object] = []

    def allocate(self) -> str:
        return "memory"

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, op: str = "") -> str:
        time.sleep(0.01)
        self.called.append((output_tensor, input_tensor, op))
        return "work"


def test_a_collective_is_called_as_ever_and_noted() -> None:
    comm, found = Comm(), list[tuple[int, float]]()
    undo = noted(comm, lambda tensor, seconds: found.append((tensor.numel(), seconds)))
    small, large = torch.zeros(2), torch.zeros(4)
    assert isinstance(comm, Comm), "FSDP asks what it is"
    assert type(comm).__name__ == "Comm"
    assert comm.allocate() == "memory"
    assert comm(small, large, op="sum") == "work"
    assert comm(output_tensor=large, input_tensor=small) == "work"
    assert comm.called == [(small, large, "sum"), (large, small, "")]
    assert [count for count, _ in found] == [4, 4]
    assert all(0.01 <= seconds < 1 for _, seconds in found)
    undo()
    assert type(comm) is Comm
    comm(small, small)
    assert len(found) == 2


def unit(world: int, replicas: object = None) -> Any:
    mesh = SimpleNamespace(mesh=SimpleNamespace(shape=(world,)))
    return SimpleNamespace(
        name="layer",
        replica_group=replicas,
        mesh_ranks=list(range(world)),
        parameters=SimpleNamespace(mesh_info=mesh),
        reduce_scatter=Comm(),
        all_gather=Comm(),
    )


def test_waiting_is_that_for_weights_and_gradients(monkeypatch: Any) -> None:
    one, steps = unit(2), list[int]()
    monkeypatch.setattr(fsdp, "units_of", lambda _module: [one])
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    watch = FsdpWatch(Settings("", steps=2, warm_up=2), lambda each: steps.append(each.steps))
    watch.add("module")
    watch.add(["module", "module"])
    for number in range(5):
        weight = torch.ones(6, requires_grad=True)
        gradient = torch.full((8,), float(number))
        weight.register_hook(  # type: ignore[no-untyped-call]
            lambda _, values=gradient: one.reduce_scatter(torch.zeros(4), values) and None
        )
        one.all_gather(torch.zeros(6), torch.zeros(3))
        weight.sum().backward()  # type: ignore[no-untyped-call]
    assert steps == [1, 2, 3, 4, 5]
    found = watch.recorded
    assert (found.counts, found.gathers, watch.floats) == ((8,), (6,), 8)
    assert 0.02 <= found.times.median.exposed_s < 1
    assert found.times.median.backward_s == 0
    assert [each.tolist() for each in found.gradients] == [[1.0] * 8]
    assert watch.problem == ""
    watch.remove()
    assert type(one.reduce_scatter) is type(one.all_gather) is Comm


def test_a_mesh_of_some_ranks_is_a_problem(monkeypatch: Any) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    for one in (unit(2), unit(4, replicas="a group")):
        monkeypatch.setattr(fsdp, "units_of", lambda _module, one=one: [one])
        watch = FsdpWatch(Settings(""), lambda _: None)
        watch.add("module")
        assert watch.problem.startswith("profile: expected FSDP2 modules sharded over all ranks, got")
