"""Every codec with every algorithm in every world: identical bits on all ranks, and within the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire import codecs, collectives
from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.links.process_group import ProcessGroupLink
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.cases import for_each
from support.sums import COMPOSED, SEGMENT_COUNT, check_sum, shares

RunRanks = Callable[..., list[Any]]
RunProcesses = Callable[..., list[Any]]
SPECS = sorted(spec for row in codecs.TABLE for spec in row.codec.EXAMPLES)
TABLED = tuple(sorted(collectives.TABLE))
ALGORITHMS = TABLED + COMPOSED
FEW_SPECS = ("identity", "errbound:2^-10", "quantize:8")


def all_sums(
    link: Link, algorithms: tuple[str, ...], specs: tuple[str, ...], lengths: list[int]
) -> dict[tuple[str, str, int], torch.Tensor]:
    """All-reduce the shares of this world in all ways, one exchange after the other over the same link."""
    found = {}
    for algorithm in algorithms:
        for spec in specs:
            exchange = Exchange(link, Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES))
            for n in lengths:
                tensor = shares(link.world, n)[link.rank]
                exchange.all_reduce(tensor, average=False)
                found[algorithm, spec, n] = tensor
    return found


def check_all(results: list[dict[tuple[str, str, int], torch.Tensor]]) -> None:
    for algorithm, spec, n in results[0]:
        sums = [found[algorithm, spec, n] for found in results]
        check_sum(sums, shares(len(results), n), parse(spec), algorithm)


@pytest.mark.parametrize("spec", SPECS)
@for_each("world", [2, 3, 5])
def test_every_codec_goes_with_every_algorithm(run_ranks: RunRanks, spec: str, world: int) -> None:
    check_all(run_ranks(world, all_sums, TABLED, (spec,), [world - 1, 1000]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@for_each("world", range(1, 18))
def test_every_algorithm_works_in_every_world(run_ranks: RunRanks, algorithm: str, world: int) -> None:
    lengths = [world - 1, 1000] if world < 9 else [1000]
    check_all(run_ranks(world, all_sums, (algorithm,), FEW_SPECS, lengths))


@pytest.mark.parametrize("world", [3, 4, 7, 9])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_chunks_of_many_segments_are_forwarded_whole(run_ranks: RunRanks, algorithm: str, world: int) -> None:
    n = 3 * collectives.get(algorithm).chunks(world) * SEGMENT_COUNT + 77
    check_all(run_ranks(world, all_sums, (algorithm,), ("errbound:2^-10",), [n]))


def all_sums_between_processes(lengths: list[int]) -> dict[tuple[str, str, int], torch.Tensor]:
    group = dist.group.WORLD
    assert group is not None
    return all_sums(ProcessGroupLink(group, timeout_s=20.0), ALGORITHMS, FEW_SPECS, lengths)


@pytest.mark.processes
@pytest.mark.parametrize("world", range(2, 9))
def test_processes_sum_as_threads_do(run_processes: RunProcesses, world: int) -> None:
    check_all(run_processes(world, all_sums_between_processes, [world - 1, 20_000]))


@pytest.mark.parametrize("algorithm", ["pairwise", "star"])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_gradients_and_finished_sums_are_encoded_with_their_own_steps(
    run_ranks: RunRanks, algorithm: str, world: int
) -> None:
    """Every rank's own values once, and the sum of what its owner has: each with the codec that is theirs."""
    count, (gradients, sums) = 500 * world, (parse("ecsq:1"), parse("ecsq:0.125"))
    codec, xs = parse("ecsq:1,sum=0.125"), shares(world, 500 * world)

    def run(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, Plan(codec, algorithm, SEGMENT_UNIT_NBYTES)).all_reduce(tensor, average=False)
        return tensor

    expected, chunks = torch.empty(count), collectives.get(algorithm).chunks(world)
    order = range(1, world) if algorithm == "star" else range(-1, -world, -1)
    for chunk in range(chunks):
        part = slice(count * chunk // chunks, count * (chunk + 1) // chunks)
        total = xs[chunk][part].clone()
        for k in order:
            gradients.decode_add(gradients.encode(xs[(chunk + k) % world][part]), total)
        sums.decode(sums.encode(total), expected[part])
    for found in run_ranks(world, run):
        assert torch.equal(found, expected)
