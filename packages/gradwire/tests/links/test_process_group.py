from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from gradwire.codecs import parse
from gradwire.errors import ExchangeError, LinkError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.links import Port, ProcessGroupLink, ThrottledLink
from gradwire.links.process_group import check_tos, store_of
from gradwire.links.rendezvous.attempt import own_part
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.certificates import needs_openssl, variables
from support.noise import likely, undisturbed

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes
TIMEOUT_S = 3.0


def make_link(timeout_s: float = TIMEOUT_S, ranks: list[int] | None = None) -> ProcessGroupLink:
    assert dist.group.WORLD is not None
    return ProcessGroupLink(dist.group.WORLD, ranks, timeout_s)


def frame(number: int, nbytes: int = 100) -> torch.Tensor:
    return torch.full((nbytes,), number, dtype=torch.uint8)


def exchange_frames() -> list[int]:
    link = make_link()
    others = [r for r in range(link.world) if r != link.rank]
    receivings = [link.irecv(r, frame(0, 1 << 20)) for r in others for _ in range(5)]
    sendings = [link.isend(r, frame(10 * link.rank + i)) for r in others for i in range(5)]
    came = [int(receiving.wait()[0]) for receiving in receivings]
    for sending in sendings:
        sending.wait()
    link.close()
    link.close()
    with pytest.raises(LinkError, match="this rank has closed its link"):
        link.isend(others[0], frame(1))
    return came


def test_frames_arrive_in_order_in_larger_buffers(run_processes: RunProcesses) -> None:
    wanted = [[10 * r + i for r in range(3) if r != me for i in range(5)] for me in range(3)]
    assert run_processes(3, exchange_frames) == wanted


def rotated_ranks() -> tuple[int, int, float]:
    link = make_link(ranks=[2, 0, 1])
    tensor = torch.full((10,), float(10 ** dist.get_rank()))
    Exchange(link, Plan(algorithm="star")).reduce(tensor)
    with pytest.raises(LinkError, match=r"ranks: expected a permutation of the group's ranks \[0, 1, 2\]"):
        make_link(ranks=[0, 1])
    return dist.get_rank(), link.rank, tensor[0].item()


def test_any_process_can_be_the_links_rank_0(run_processes: RunProcesses) -> None:
    assert run_processes(3, rotated_ranks) == [(0, 1, 1.0), (1, 2, 10.0), (2, 0, 111.0)]


def marked_connections(environment: dict[str, str]) -> tuple[list[int], torch.Tensor]:
    group = dist.group.WORLD
    assert group is not None
    with patch.dict(os.environ, environment):
        link = ProcessGroupLink(group, timeout_s=20.0, tos=0x40)
    option = socket.IPPROTO_IP, socket.IP_TOS
    channels = (*link._channels.values(), *link._marked.values())
    found = [each.socket.getsockopt(*option) for each in channels]
    tensor = torch.full((10_000,), 0.01 * link.rank)
    Exchange(link, Plan(algorithm="tree", offload="inceptionn:2^-6,bounded")).all_reduce(tensor)
    link.close()
    return found, tensor


def test_a_link_may_have_marked_connections_beside_its_own(run_processes: RunProcesses) -> None:
    results = run_processes(3, marked_connections, {})
    assert [sorted(tos) for tos, _ in results] == [[0, 0, 0x40, 0x40]] * 3
    assert all(torch.equal(tensor, results[0][1]) for _, tensor in results)


def with_tls_and_marks() -> str:
    with pytest.raises(LinkError) as caught:
        marked_connections(variables())
    return str(caught.value)


@needs_openssl
def test_what_goes_with_tls_no_nic_could_compress(run_processes: RunProcesses) -> None:
    (message,) = run_processes(1, with_tls_and_marks)
    assert "because NICs cannot compress with TLS, got one with offload; unset" in message


@pytest.mark.parametrize("tos", [-4, 3, 256, 0.5, "0x28"])
def test_a_mark_that_is_no_type_of_service_is_refused(tos: Any) -> None:
    with pytest.raises(LinkError, match=r"tos: expected a type of service from 0x04 to 0xff, or 0"):
        check_tos(tos)


def late_frame() -> str:
    link = make_link(timeout_s=0.5)
    if link.rank == 1:
        dist.barrier()
        return ""
    started = time.monotonic()
    with pytest.raises(LinkTimeoutError) as caught:
        link.irecv(1, frame(0)).wait()
    assert 0.4 < time.monotonic() - started < 10
    dist.barrier()
    return str(caught.value)


def test_a_late_frame_is_a_timeout_that_names_both_ranks(run_processes: RunProcesses) -> None:
    message = run_processes(2, late_frame)[0]
    assert message.startswith("rank 0 receiving from rank 1: no progress within 0.5 s; check")


def closed_while_others_wait() -> str:
    link = make_link(timeout_s=20.0)
    if link.rank == 1:
        pending = [link.irecv(0, frame(0))]  # would keep the connection open
        time.sleep(0.5)
        link.close()
        dist.barrier()
        del pending
        return ""
    started = time.monotonic()
    with pytest.raises(LinkError) as caught:
        link.irecv(1, frame(0)).wait()
    assert time.monotonic() - started < 15
    dist.barrier()
    return str(caught.value)


def test_closing_a_link_wakes_who_waits_for_it(run_processes: RunProcesses) -> None:
    message = run_processes(2, closed_while_others_wait)[0]
    assert message == "rank 0 receiving from rank 1: rank 1 has closed its link"


def chain_of_errors() -> float:
    exchange, tensor = Exchange(make_link(timeout_s=20.0), Plan()), torch.ones(100)
    exchange.all_reduce(tensor)
    if dist.get_rank() == 1:
        exchange.close()
        dist.barrier()
        return 0.0
    started = time.monotonic()
    try:
        exchange.all_reduce(tensor)
    except ExchangeError:
        seconds = time.monotonic() - started
        dist.barrier()  # the error, and all that its traceback refers to, is alive meanwhile
    return seconds


def test_an_error_that_somebody_keeps_does_not_keep_the_connections(run_processes: RunProcesses) -> None:
    assert max(run_processes(4, chain_of_errors)) < 15


def absent_rank() -> str:
    message = ""
    if dist.get_rank() == 0:
        with pytest.raises(LinkTimeoutError) as caught:
            make_link(timeout_s=0.5)
        message = str(caught.value)
    dist.barrier()
    return message


def test_ranks_that_do_not_all_come_are_a_timeout(run_processes: RunProcesses) -> None:
    message = run_processes(2, absent_rank)[0]
    assert message.startswith("rank 0 connecting with the 2 ranks of its group (rank 1 did not join): ")
    assert "no progress within 0.5 s; check that all ranks run" in message


def a_refusal_on_one_rank() -> float:
    with pytest.raises(LinkError, match=r"did not join|expected a permutation"):
        make_link(0.5, ranks=[0, 0] if dist.get_rank() else None)
    dist.barrier()
    link, tensor = make_link(20.0), torch.ones(10)
    Exchange(link, Plan()).all_reduce(tensor, average=False)
    return tensor[0].item()


def test_after_a_refusal_on_one_rank_all_may_try_again(run_processes: RunProcesses) -> None:
    assert run_processes(2, a_refusal_on_one_rank) == [2.0, 2.0]


def late_and_gone() -> float:
    group, started = dist.group.WORLD, time.monotonic()
    assert group is not None
    if dist.get_rank() == 1:
        time.sleep(1.5)
        own_part(group, store_of(group), "rank 1 joining", 20.0)
    else:
        with pytest.raises(LinkTimeoutError, match=r"rank 1 did not join.*: no progress within 2 s"):
            make_link(2.0)
    seconds = time.monotonic() - started
    dist.barrier()
    return seconds


def test_all_parts_of_connecting_have_one_timeout(run_processes: RunProcesses) -> None:
    assert 1.9 < run_processes(2, late_and_gone)[0] < 3.3


def two_links_and_the_group_itself() -> tuple[float, float, float]:
    rank = dist.get_rank()
    exchanges = [Exchange(make_link(), Plan()) for _ in range(2)]
    tensors = [torch.full((1000,), float(k + rank)) for k in range(3)]
    pending = dist.all_reduce(tensors[2], async_op=True)
    for exchange, tensor in zip(exchanges, tensors, strict=False):
        exchange.all_reduce(tensor, average=False)
    assert pending is not None
    pending.wait()
    first, second, third = (tensor[-1].item() for tensor in tensors)
    return first, second, third


def test_links_of_one_group_and_the_group_itself_do_not_mix(run_processes: RunProcesses) -> None:
    assert run_processes(2, two_links_and_the_group_itself) == [(1.0, 3.0, 5.0)] * 2


def sums(specs: list[str], algorithm: str, n: int) -> list[torch.Tensor]:
    link = make_link(timeout_s=20.0)
    results = []
    for spec in specs:
        tensor = torch.randn(n, generator=torch.Generator().manual_seed(link.rank)) * 0.01
        Exchange(link, Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)).all_reduce(tensor, average=False)
        results.append(tensor)
    return results


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ring", "star"])
def test_exchanges_between_processes_are_within_bounds_and_bit_identical(
    run_processes: RunProcesses, world: int, algorithm: str
) -> None:
    bounds = {"identity": 1e-8, "errbound:2^-10": 2**-10, "bf16": 2**-9 * 0.2, "lossless": 1e-8}
    n = 100_000
    exact = sum(
        torch.randn(n, generator=torch.Generator().manual_seed(r)).double() * 0.01 for r in range(world)
    )
    results = run_processes(world, sums, list(bounds), algorithm, n)
    for i, bound in enumerate(bounds.values()):
        for rank in range(world):
            assert torch.equal(results[rank][i].view(torch.int32), results[0][i].view(torch.int32))
        assert (results[0][i].double() - exact).abs().max() <= world * bound


def throttled_sum() -> tuple[float, float]:
    link = ThrottledLink(make_link(timeout_s=20.0), Port(8e6))
    tensor = torch.ones(500_000)
    dist.barrier()
    started = time.monotonic()
    Exchange(link, Plan(segment_nbytes=1 << 18)).all_reduce(tensor, average=False)
    return time.monotonic() - started, tensor.sum().item()


def test_a_throttled_link_paces_processes_by_their_common_clock(run_processes: RunProcesses) -> None:
    def attempt() -> None:
        for seconds, total in run_processes(2, throttled_sum):
            assert total == 1_000_000
            assert seconds >= 0.25  # each sends 2 MB at 8 MB/s
            likely(seconds < 1.0, seconds)

    undisturbed(attempt)


def until_it_fails(folder: str) -> tuple[str, float]:
    link = make_link()
    exchange = Exchange(link, Plan(segment_nbytes=1 << 18))
    tensor = torch.ones(1 << 20)
    Path(folder, f"pid-{dist.get_rank()}.part").write_text(str(os.getpid()))
    Path(folder, f"pid-{dist.get_rank()}.part").rename(Path(folder, f"pid-{dist.get_rank()}"))
    while True:
        before = time.monotonic()
        try:
            exchange.all_reduce(tensor)
        except ExchangeError as error:
            return str(error), time.monotonic() - before


def different_segments() -> str:
    link = make_link()
    unit = SEGMENT_UNIT_NBYTES * (1 + 63 * link.rank)
    try:
        Exchange(link, Plan(segment_nbytes=unit)).all_reduce(torch.ones(1 << 20))
    except ExchangeError as error:
        return str(error)
    return "no error"


def test_frames_of_other_sizes_than_expected_are_refused_by_who_gets_one_first(
    run_processes: RunProcesses,
) -> None:
    errors = run_processes(2, different_segments)
    pattern = r"a frame of (4096|262144) elements, got (262144|4096);"
    assert any(re.search(pattern, error) for error in errors), errors
    assert all(error.startswith("step ") for error in errors)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_peer_that_dies_in_an_exchange_is_an_error_on_every_other_rank(
    run_processes: RunProcesses, tmp_path: Path, blow: signal.Signals
) -> None:
    def strike() -> None:
        victim = tmp_path / "pid-1"
        while not (victim.exists() and (tmp_path / "pid-0").exists() and (tmp_path / "pid-2").exists()):
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(int(victim.read_text()), blow)

    threading.Thread(target=strike, daemon=True).start()
    errors = run_processes(3, until_it_fails, str(tmp_path), absent=[1])
    for rank in (0, 2):
        message, seconds = errors[rank]
        assert message.startswith("step ")
        assert f"rank {rank} " in message
        assert seconds < TIMEOUT_S + 10
    assert any("rank 1" in errors[rank][0] for rank in (0, 2))
