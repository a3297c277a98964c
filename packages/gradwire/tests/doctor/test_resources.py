from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from gradwire.doctor.local import (
    Resources,
    _quota,
    check_cores,
    check_limits,
    check_memory,
    check_numa,
    find_resources,
)

PLENTY = Resources(
    cores=8,
    quota_cores=math.inf,
    numa_nodes=1,
    open_files=65536,
    address_space_nbytes=math.inf,
    locked_nbytes=math.inf,
    memory_nbytes=64e9,
)


@pytest.mark.parametrize(
    ("found", "threads", "neighbours", "result", "words"),
    [
        (PLENTY, 8, 1, "ok", "8 cores; 1 rank x 8 threads"),
        (PLENTY, 2, 4, "ok", "4 ranks x 2 threads"),
        (PLENTY, 8, 4, "warn", "set OMP_NUM_THREADS=2"),
        (replace(PLENTY, quota_cores=1.5), 8, 1, "warn", "limited to 1.5 by its"),
        (replace(PLENTY, quota_cores=1.5), 2, 1, "ok", "limited to 1.5 by its"),
        (PLENTY, 1, 9, "warn", "9 ranks share these cores"),
    ],
)
def test_threads_of_all_ranks_fit_the_cores(
    found: Resources, threads: int, neighbours: int, result: str, words: str
) -> None:
    finding = check_cores(found, threads, neighbours)
    assert finding.result == result
    assert words in finding.detail


def test_open_files_must_suffice_for_all_peers() -> None:
    few = replace(PLENTY, open_files=256)
    assert check_limits(few, 2).result == "ok"
    assert check_limits(few, 30).result == "warn"
    finding = check_limits(few, 200)
    assert finding.result == "FAIL"
    assert "ulimit -n 4096" in finding.detail


def test_other_limits_are_told() -> None:
    assert check_limits(replace(PLENTY, address_space_nbytes=8e9), 2).result == "warn"
    assert "locked memory: 65.54kB" in check_limits(replace(PLENTY, locked_nbytes=65536), 2).detail


def test_memory_is_shared_by_the_ranks_of_a_machine() -> None:
    some = replace(PLENTY, memory_nbytes=3e9)
    assert check_memory(some, 2).result == "ok"
    assert check_memory(some, 3).result == "warn"
    assert check_memory(replace(PLENTY, memory_nbytes=math.inf), 99).result == "ok"


def test_several_memory_nodes_come_with_a_hint() -> None:
    assert check_numa(1, 4).detail == "1 memory node"
    assert "numactl" in check_numa(2, 1).detail


@pytest.mark.parametrize(
    ("texts", "quota_cores"),
    [
        (["200000 100000\n"], 2.0),
        (["max 100000\n"], math.inf),
        (["50000\n", "100000\n"], 0.5),
        (["-1\n", "100000\n"], math.inf),
        (["", ""], math.inf),
        ([""], math.inf),
    ],
)
def test_quotas_of_both_versions_of_control_groups_are_read(texts: list[str], quota_cores: float) -> None:
    assert _quota(texts) == quota_cores


def test_this_machine_has_something_of_all() -> None:
    found = find_resources()
    assert found.cores == len(os.sched_getaffinity(0))
    assert min(found.quota_cores, found.numa_nodes, found.open_files, found.memory_nbytes) > 0
