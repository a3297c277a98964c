"""Measure the costs of codecs on recorded or synthetic gradients, and of frames on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, median
from threading import Barrier
from typing import NamedTuple

import torch

from gradwire.codecs import Codec
from gradwire.errors import LinkError, TensorError
from gradwire.exchange import Exchange
from gradwire.launch.launched import is_launched
from gradwire.links.base import Link
from gradwire.links.sockets import SocketLink
from gradwire.machine import cores
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.calibrate import (
    cost_on,
    disagreement,
    encode_and_add_s,
    identity_cost,
    rest_between_segments,
    sums,
)
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import (
    FRAMES,
    LARGE_NBYTES,
    SMALL_NBYTES,
    EndCost,
    FrameCost,
    HostCost,
    Line,
    both_ends,
)


def threads_of(hosts: int, *, shared: bool) -> int:
    """Return the number of threads of one rank: PyTorch's, if a launcher has started this process as a rank.

    Otherwise, a rank uses all cores of this machine, or its share of them if ``shared``.
    """
    if is_launched():  # torchrun sets OMP_NUM_THREADS=1 for several ranks on a host
        return torch.get_num_threads()
    return max(1, cores() // hosts) if shared else cores()


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Run a ``with`` block with this number of PyTorch threads, which codecs also use."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SAMPLE_COUNT = 1 << 20
"""The number of floats sampled from a gradient, in pieces that range from its first to its last layer."""
STRETCHES = 16
SYNTHETIC_SCALE = 1e-3
SYNTHETIC_SAMPLES = 4
SEGMENT_NBYTES = 1 << 20
ROUNDS = 3
"""The number of measurements of each codec, seconds apart, because other load on the machine varies."""

Show = Callable[[int, int, str], None]
"""A progress callback that receives the numbers of completed and of all measurements, and the next codec."""


def measure_codecs(
    codecs: Sequence[Codec],
    gradients: Sequence[torch.Tensor],
    world: int,
    threads: int,
    line: Line,
    show: Show = lambda _done, _total, _what: None,
) -> dict[str, CodecCost]:
    """Return the cost of every codec, by its spec, on sums of up to ``world`` gradients.

    The gradients belong to different steps or ranks; they have any shape and floating dtype, and equal size.
    ``threads`` is the number of threads of one rank. Between segments, codecs pause for the time in which
    ``line`` sends one segment. Raises ``TensorError`` if gradients are empty or differ in size.
    """
    samples = [excerpt(gradient) for gradient in gradients]
    rest_s, total = rest_between_segments(line, SEGMENT_NBYTES), ROUNDS * len(codecs)
    costs: dict[str, CodecCost] = {}
    seconds: dict[str, list[float]] = {str(codec): [] for codec in codecs}
    with use_threads(threads):
        summed = sums(samples, world)
        for done, codec in enumerate(codecs):
            show(done, total, str(codec))
            costs[str(codec)] = cost_on(codec, summed, SEGMENT_NBYTES, rest_s)
            seconds[str(codec)].append(encode_and_add_s(codec, samples[0], SEGMENT_NBYTES, rest_s))
        for done, codec in enumerate((ROUNDS - 1) * list(codecs), start=len(codecs)):
            show(done, total, f"{codec} again")
            seconds[str(codec)].append(encode_and_add_s(codec, samples[0], SEGMENT_NBYTES, rest_s))
    show(total, total, "")
    return {
        spec: replace(cost, disagreement=max(cost.disagreement, disagreement(seconds[spec])))
        for spec, cost in costs.items()
    }


def synthetic_gradients(count: int) -> list[torch.Tensor]:
    """Return synthetic gradients of at most ``count`` values each, with a Laplace distribution."""
    generator = torch.Generator().manual_seed(0)
    size = (min(count, SAMPLE_COUNT),)
    samples = []
    for _ in range(SYNTHETIC_SAMPLES):
        uniform = torch.rand(size, generator=generator) - 0.5
        inside = 1 - 2 * uniform.abs().clamp(max=0.5 - 2**-24)
        samples.append(-SYNTHETIC_SCALE * uniform.sign() * inside.log())
    return samples


def excerpt(gradient: torch.Tensor, count: int = SAMPLE_COUNT) -> torch.Tensor:
    """Return at most ``count`` values as 1-D float32 on the CPU, in pieces spread over the gradient.

    Raises ``TensorError`` unless ``gradient`` is a tensor of finite floating point numbers.
    """
    if not isinstance(gradient, torch.Tensor) or not gradient.is_floating_point():
        kind = gradient.dtype if isinstance(gradient, torch.Tensor) else type(gradient).__name__
        raise TensorError(
            f"expected a gradient of floating point numbers, got {kind}; pass floats, such as the result of "
            "record_gradients"
        )
    if gradient.is_meta:
        raise TensorError(
            "expected a gradient with values, got a gradient on the device 'meta'; record gradients of a "
            "real backward pass"
        )
    flat = (gradient if gradient.layout is torch.strided else gradient.to_dense()).detach().flatten()
    if flat.numel() > count:
        length = count // STRETCHES
        apart = (flat.numel() - length) // (STRETCHES - 1)
        flat = torch.cat([flat[i * apart : i * apart + length] for i in range(STRETCHES)])
    values = flat.to(device="cpu", dtype=torch.float32).contiguous()
    if not values.isfinite().all():
        raise TensorError(
            "expected a finite gradient to measure codecs on, got a gradient with NaN or infinity; record "
            "steps that do not overflow"
        )
    return values


# The cost of a frame, with both ends of a link in this process, substitutes for a measurement between hosts.
# The packets of the loopback interface are large: a network card without offloads costs more per byte (in
# measurements, two to four times as much between network namespaces).

_ROUNDS = 9
_TIMEOUT_S = 20.0
_LOCAL = "127.0.0.1"


def measure_host(cores: int, ranks_per_machine: int, rounds: int = _ROUNDS) -> HostCost:
    """Return the costs of a frame on this machine, as medians of ``rounds`` measurements.

    Raises ``LinkError`` if the machine has no loopback interface.
    """
    barrier = Barrier(2, timeout=_TIMEOUT_S)
    try:
        with ThreadPoolExecutor(2) as pool, local_pair() as ends:
            received, sent = pool.map(lambda link: _clocks_of(link, barrier, rounds), ends)
    except OSError as error:
        raise LinkError(
            f"cannot measure the cost of frames over the loopback interface ({error.strerror or error}); "
            "bring the interface 'lo' up, or pass a link measured with 'gradwire line-rate'"
        ) from error
    beside_s = list[float]()  # of all threads but the two that exchange, for small and for large frames
    for ins, outs in zip(received, sent, strict=True):
        pairs = zip(ins, outs, strict=True)
        beside_s.append(
            median(max(0.0, into.process_s - out.thread_s - into.thread_s) for into, out in pairs)
        )

    def end_cost(end: list[list[_CpuTimes]], codec_s: float) -> EndCost:
        thread_s = [median(each.thread_s for each in clocks) for clocks in end]
        costs = zip(thread_s, beside_s, strict=True)
        small, large = (FrameCost(own_s / FRAMES, other_s / 2 / FRAMES) for own_s, other_s in costs)
        return EndCost.fit(small, large, codec_s / FLOAT_NBYTES)

    identity = identity_cost(rounds)
    sender, receiver = end_cost(sent, identity.encode_s), end_cost(received, identity.decode_add_s)
    scatter = fmean(disagreement([each.thread_s for each in clocks]) for clocks in (*received, *sent))
    return replace(both_ends(sender, receiver, cores, ranks_per_machine), disagreement=scatter)


class _CpuTimes(NamedTuple):
    thread_s: float
    process_s: float


@contextmanager
def local_pair() -> Iterator[tuple[SocketLink, SocketLink]]:
    """Yield the two ends of a link over the loopback interface."""
    with socket.create_server((_LOCAL, 0)) as listening:
        called = socket.create_connection(listening.getsockname(), timeout=_TIMEOUT_S)
        answered = listening.accept()[0]
    for each in (called, answered):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
    ends = SocketLink(0, {1: answered}, _TIMEOUT_S), SocketLink(1, {0: called}, _TIMEOUT_S)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def _clocks_of(link: Link, barrier: Barrier, rounds: int) -> list[list[_CpuTimes]]:
    """Run one end, rank 1 as the sender; return its CPU times for small frames, then for large frames."""
    found = []
    for nbytes in (SMALL_NBYTES, LARGE_NBYTES):
        exchange = Exchange(link, Plan(algorithm="star", segment_nbytes=nbytes))
        bucket, clocks = torch.zeros(FRAMES * nbytes // FLOAT_NBYTES), list[_CpuTimes]()
        exchange.reduce(bucket)  # the first exchange allocates the buffers
        for _ in range(rounds):
            barrier.wait()
            thread_s, process_s = time.thread_time(), time.process_time()
            exchange.reduce(bucket)
            thread_s = time.thread_time() - thread_s
            barrier.wait()
            clocks.append(_CpuTimes(thread_s, time.process_time() - process_s))
        found.append(clocks)
    return found
