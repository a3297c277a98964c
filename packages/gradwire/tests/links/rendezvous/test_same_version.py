from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import AttachError, LinkError
from gradwire.links.rendezvous import attempt
from gradwire.links.rendezvous.attempt import check_same_version, joined

RunProcesses = Callable[..., list[Any]]
NAMES = ["rank 4", "rank 5", "rank 6"]


def told(versions: str, own: str = "0.1.0") -> str:
    with pytest.raises(LinkError) as caught:
        check_same_version(versions, NAMES, own, "rank 5 connecting")
    return str(caught.value)


def test_one_version_is_welcome() -> None:
    check_same_version(joined({2: "1.2.3", 0: "1.2.3", 1: "1.2.3"}), NAMES, "1.2.3", "rank 5 connecting")


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({0: "1.2.3", 1: "1.2.4", 2: "1.2.3"}, "1.2.3 on rank 4, rank 6 and 1.2.4 on rank 5"),
        ({2: "3", 0: "1", 1: "2"}, "1 on rank 4 and 2 on rank 5 and 3 on rank 6"),
        ({0: "1", 1: "", 2: "1"}, "1 on rank 4, rank 6 and an older version on rank 5"),
        ({0: "1", 1: "2" * 99, 2: "1"}, f"1 on rank 4, rank 6 and {'2' * 40} on rank 5"),
    ],
)
def test_different_versions_are_named_with_their_ranks(versions: dict[int, str], found: str) -> None:
    assert told(joined(versions)) == (
        f"rank 5 connecting: expected the same version of gradwire on all ranks, got {found}; "
        "install the same version on all ranks"
    )


def test_a_first_rank_that_tells_no_versions_is_older() -> None:
    assert "got an older version on rank 4 and 0.1.0 on this rank;" in told("")


def test_as_many_versions_as_ranks_are_expected() -> None:
    assert told("1\n1") == (
        r"rank 5 connecting: expected the versions of 3 ranks in torch's store, got '1\n1'; "
        "look for another program that writes to this store"
    )


def attach_as_another_version() -> str:
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    attempt._attempts[model.process_group] = attempt.GroupAttempt(version=f"{rank + 1}.0.0")
    with pytest.raises(AttachError) as caught:
        # nothing of the plans, which differ as well, is compared
        gradwire.attach(model, ["fp8", "bf16"][rank], timeout_s=20)
    del attempt._attempts[model.process_group]
    return str(caught.value)


@pytest.mark.processes
def test_processes_with_two_versions_do_not_begin(run_processes: RunProcesses) -> None:
    for rank, said in enumerate(run_processes(2, attach_as_another_version)):
        assert said == (
            f"rank {rank} attaching with the 2 ranks of the model's group: expected the same version of "
            "gradwire on all ranks, got 1.0.0 on rank 0 and 2.0.0 on rank 1; "
            "install the same version on all ranks"
        )
