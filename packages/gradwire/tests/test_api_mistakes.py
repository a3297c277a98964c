"""What a new user gets wrong with ``all_reduce``: an error whose advice works, or the right result."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import gradwire
from gradwire.errors import ExchangeError, SpecError, TensorError

RunProcesses = Callable[..., list[Any]]

COPIED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "integers": lambda x: x.to(torch.int32),
    "bits": lambda x: x > 1,
    "quantized": lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
    "sparse": lambda x: x.to_sparse(),
    "compressed rows": lambda x: x[None].to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "expanded": lambda x: x[1:2].expand(3),
    "windows": lambda x: x.unfold(0, 2, 1),
}
if hasattr(torch, "float8_e8m0fnu"):  # from torch 2.7 on
    COPIED["scales"] = lambda x: x.to(torch.float8_e8m0fnu)
SHARED: dict[str, Callable[[torch.Tensor], Any]] = {
    "complex": lambda x: torch.complex(x, 2 * x),
    "nested": lambda x: torch.nested.nested_tensor([x[:1], x[1:]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged),
    "an array": lambda x: x.numpy(),
    "a distributed tensor": lambda x: DTensor.from_local(x, init_device_mesh("cpu", (2,)), [Replicate()]),
}


def values(rank: int) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 4.0]) * (1 + rank)


def refusal(tensor: Any) -> str:
    with pytest.raises(TensorError) as caught:
        gradwire.all_reduce(tensor, "identity")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def following_the_advice() -> dict[str, list[float]]:
    """Do what each refusal says; return what its reader has then."""
    warnings.simplefilter("ignore")  # torch's, of tensors that are new or on their way out
    rank = dist.get_rank()
    names: dict[str, Any] = {"all_reduce": partial(gradwire.all_reduce, codec="identity"), "torch": torch}
    results = {}
    for name, make in COPIED.items():
        names["tensor"] = make(values(rank))
        advice = re.search(
            r"write (averaged = all_reduce\(.*\)), and use the returned tensor$", refusal(names["tensor"])
        )
        assert advice is not None, name
        exec(advice[1], names)
        results[name] = names["averaged"].flatten().tolist()
    for name, make in SHARED.items():
        names["tensor"] = names["array"] = make(values(rank))
        advice = re.search(
            r"(?:pass|with|or) (\S+\))(?:, which is a view| for a DTensor)?$", refusal(names["tensor"])
        )
        assert advice is not None, name
        exec(f"all_reduce({advice[1]})", names)
        kept = names["tensor"]
        kept = torch.view_as_real(kept) if name == "complex" else kept
        kept = kept.to_local() if isinstance(kept, DTensor) else kept
        kept = kept.values() if name in ("nested", "jagged") else kept
        results[name] = torch.as_tensor(kept).flatten().tolist()
    return results


@pytest.mark.processes
def test_who_does_what_a_refusal_says_has_the_average(run_processes: RunProcesses) -> None:
    average = [1.5, 3.0, 6.0]
    expected = dict.fromkeys([*COPIED, *SHARED], average)
    expected["bits"] = [0.5, 1.0, 1.0]
    expected["scales"] = average
    expected["expanded"] = [3.0] * 3
    expected["windows"] = [1.5, 3.0, 3.0, 6.0]
    expected["complex"] = [1.5, 3.0, 3.0, 6.0, 6.0, 12.0]
    assert run_processes(2, following_the_advice) == [expected] * 2


def arguments_of_the_wrong_kind() -> dict[str, str]:
    """Return what is said of each; nothing of it may disturb the calls that follow."""
    rank = dist.get_rank()
    destroyed = dist.new_group()
    dist.destroy_process_group(destroyed)
    cases: dict[str, dict[str, Any]] = {
        "average": {"average": "sum"},
        "average of torch": {"average": dist.ReduceOp.AVG},
        "another tensor": {"codec": torch.ones(50, 50)},
        "a class": {"codec": gradwire.codecs.Quantize},
        "a group's name": {"group": "gloo"},
        "a mesh": {"group": init_device_mesh("cpu", (2,))},
        "ranks": {"group": [0, 1]},
        "a destroyed group": {"group": destroyed},
        "somebody else's group": {"group": dist.GroupMember.NON_GROUP_MEMBER},
        "a time as text": {"timeout_s": "30"},
        "no time": {"timeout_s": None},
        "an endless number": {"timeout_s": 10**5000},
        "a segment": {"segment_nbytes": 10**30},
        "a pipeline": {"plan": '{"pipeline": 2}'},
        "a plan as codec": {"codec": gradwire.Plan()},
    }
    said = {}
    for name, arguments in cases.items():
        tensor = values(rank)
        with pytest.raises((SpecError, ExchangeError)) as caught:
            gradwire.all_reduce(tensor, **arguments)
        said[name] = str(caught.value)
        assert len(said[name]) < 300
        assert "\n" not in said[name]
        assert torch.equal(tensor, values(rank))
    assert gradwire.all_reduce(values(rank), "identity").tolist() == [1.5, 3.0, 6.0]
    return said


@pytest.mark.processes
def test_an_argument_of_the_wrong_kind_is_named_and_spoils_nothing(run_processes: RunProcesses) -> None:
    for rank, said in enumerate(run_processes(2, arguments_of_the_wrong_kind)):
        assert said["average"] == "average: expected True or False, got 'sum'; pass False for the sum"
        assert "average: expected" in said["average of torch"]
        assert "codec: expected a codec, its spec or None, got tensor([[1., 1., " in said["another tensor"]
        assert "codec: expected a codec, its spec or None, got <class" in said["a class"]
        assert "expected a group of torch.distributed, got 'gloo'; pass the" in said["a group's name"]
        assert "got DeviceMesh" in said["a mesh"]
        assert "got [0, 1]" in said["ranks"]
        assert said["a destroyed group"].startswith(
            f"rank {rank}: this group has been destroyed; create another"
        )
        assert said["somebody else's group"].startswith(f"rank {rank} is not in the group")
        assert said["a time as text"].endswith("got '30'; pass, for example, 30")
        assert said["no time"].endswith("got None; pass, for example, 30")
        assert said["an endless number"].endswith("; pass, for example, 30")
        assert "expected a whole number from 16384 to 17179852800 for segment_nbytes" in said["a segment"]
        assert "read the text with Plan.from_json" in said["a pipeline"]
        assert "codec: expected a codec, its spec or None, got Plan(" in said["a plan as codec"]


def twice_and_out_of_order() -> tuple[list[float], str, list[float]]:
    rank = dist.get_rank()
    tensor = values(rank)
    twice = gradwire.all_reduce(gradwire.all_reduce(tensor, "identity"), "identity").tolist()
    with pytest.raises(ExchangeError) as caught:
        gradwire.all_reduce(torch.ones(20 if rank else 10), timeout_s=5.0)
    dist.barrier()
    return twice, str(caught.value), gradwire.all_reduce(values(rank), "identity").tolist()


@pytest.mark.processes
def test_twice_is_the_average_and_another_order_an_error(run_processes: RunProcesses) -> None:
    messages = []
    for twice, message, after in run_processes(2, twice_and_out_of_order):
        assert twice == after == [1.5, 3.0, 6.0]
        messages.append(message)
    assert any("elements" in message for message in messages), messages


def after_destroy(folder: str) -> tuple[list[str], list[float]]:
    rank, old = dist.get_rank(), dist.group.WORLD
    gradwire.all_reduce(values(rank))
    dist.destroy_process_group()
    said = []
    for group in (None, old):
        with pytest.raises(ExchangeError) as caught:
            gradwire.all_reduce(values(rank), group=group)
        said.append(str(caught.value))
    dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=rank, world_size=2)
    with pytest.raises(ExchangeError) as caught:
        gradwire.all_reduce(values(rank), group=old)
    return [*said, str(caught.value)], gradwire.all_reduce(values(rank), "identity").tolist()


@pytest.mark.processes
def test_after_destroy_process_group_one_starts_again(run_processes: RunProcesses, tmp_path: Path) -> None:
    for said, averaged in run_processes(2, after_destroy, str(tmp_path)):
        assert all("call torch.distributed.init_process_group first" in each for each in said[:2])
        assert "this group has been destroyed; create another with new_group" in said[2]
        assert averaged == [1.5, 3.0, 6.0]
