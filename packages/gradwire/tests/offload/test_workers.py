from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire import _native
from gradwire.errors import SpecError
from gradwire.offload import sender
from gradwire.offload.sender import packing_thread


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_on_that_thread_use_so_many_threads_and_others_as_many_as_before(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_THREADS", raising=False)
    before = torch.get_num_threads()
    with packing_thread(threads) as there, packing_thread() as other:
        assert there.submit(_native.threads).result() == threads
        assert there.submit(torch.get_num_threads).result() == threads
        assert other.submit(_native.threads).result() == before
    assert torch.get_num_threads() == before


def test_no_more_threads_run_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_THREADS", raising=False)
    x, asked = torch.zeros(1 << 20), list[int]()
    encode = _native._core.encode

    def recorded(*args: Any) -> int:
        asked.append(args[-1])
        return int(encode(*args))

    monkeypatch.setattr(_native._core, "encode", recorded)
    out = torch.empty(4 << 20, dtype=torch.uint8)
    with packing_thread(2) as there:
        there.submit(_native.encode, "pack", x, out, (16,)).result()
    assert asked == [2]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sender, "_NODES", tmp_path)
    return tmp_path


def test_it_runs_on_the_cpus_of_a_node_that_the_process_may_use(nodes: Path) -> None:
    own = os.sched_getaffinity(0)
    last = max(own)
    for node, cpus in (("node0", "0-1023\n"), ("node1", f"{last}\n"), ("node2", "2000-2001,3000\n")):
        (nodes / node).mkdir()
        (nodes / node / "cpulist").write_text(cpus)
    with packing_thread(numa=0) as every, packing_thread(threads=2, numa=1) as one:
        assert every.submit(os.sched_getaffinity, 0).result() == own
        assert one.submit(os.sched_getaffinity, 0).result() == {last}
    assert os.sched_getaffinity(0) == own, "only the packing thread is bound"
    with pytest.raises(SpecError, match="CPUs that this process may use, got numa=2; choose another"):
        packing_thread(numa=2)
    for wrong in (7, -1, True, "0"):
        with pytest.raises(
            SpecError, match=r"expected a NUMA node of this machine \(0, 1, 2\) or None, got numa="
        ):
            packing_thread(numa=wrong)  # type: ignore[arg-type]


def test_a_machine_that_shows_no_nodes_has_none(nodes: Path) -> None:
    assert not [*nodes.iterdir()]
    with pytest.raises(SpecError, match=r"a NUMA node of this machine \(none\) or None, got numa=0"):
        packing_thread(numa=0)


@pytest.mark.parametrize("threads", [0, -1, 1.0, True, "2"])
def test_a_wrong_budget_is_refused(threads: object) -> None:
    with pytest.raises(SpecError, match="expected a whole number of at least 1, or None, for threads, got"):
        packing_thread(threads)  # type: ignore[arg-type]
