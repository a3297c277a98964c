"""Measure the kernels of gradwire.gpu on this machine's GPU, relative to a device copy in the same run.

First, every codec's bytes, decoded bits, and sums are compared with the host's, for random values that
include NaN, infinities, and subnormals. A speed is the float bytes of a call, 4 n, divided by its median
time. The copy moves the same n floats within the device's memory. Other copies are queued before each
measured call, so that the device never waits for the host. The host's time to queue an encode is reported as
well, because this time dominates for small chunks.

Then two ranks, which are threads, all-reduce a gradient that is encoded on the device. The bytes that cross
the bus are compared with copying the floats in both directions, and a trace checks that no stream is
synchronized and that nothing is copied to or from pageable memory. The time is compared with copying the
floats and encoding them on the host.

``--interpret`` runs the same on the CPU, with few values, a simulated device, and Triton's interpreter. This
mode checks the script and the kernels, and measures no speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from time import perf_counter

import numpy as np
import torch

from gradwire import gpu, loopback
from gradwire.codecs import Codec, parse
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.simulated_device.simulated import Simulated

SPECS = (
    "identity",
    "bf16",
    "fp16",
    "fp8",
    "quantize:8",
    "quantize:4",
    "bfp:7x16",
    "truncate:16",
    "truncate:22",
    "bitpack:1",
    "bitpack:3",
    "errbound:2^-10",
    "errbound:rel=0.25,block=1024",
    "inceptionn:2^-10",
    "terngrad",
    "topk:0.01",
)
REPEATS = 20
AHEAD = 20
"""The number of copies before a call; the copies take longer than the host needs to queue the call."""
SYNCHRONISES = {"cudaStreamSynchronize"}  # the profiler itself synchronizes the device at its end
PAGEABLE = "Pageable"
"""The word in the profiler's name for a copy through memory that is not pinned."""


def main(arguments: list[str] | None = None) -> int:
    args = parse_args(arguments)
    if args.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        device, name = torch.device("cpu"), "Triton's interpreter on the CPU"
    elif torch.cuda.is_available():
        device = torch.device("cuda")
        name = torch.cuda.get_device_name(device)
    else:
        print("This machine has no GPU that PyTorch sees, so nothing was measured; --interpret needs none.")
        return 0
    print(f"{name}, torch {torch.__version__}, {args.values:,} float32")
    faults = [
        fault for spec in args.codecs for fault in differences(parse(spec), args.identity_values, device)
    ]
    if faults:
        print("\n".join(faults))
        return 1
    print(
        f"encoded bytes, decoded bits, and sums equal the host's for {args.identity_values:,} random values "
        "of every kind\n"
    )
    measure(args.codecs, args.values, device)
    few = args.values if args.interpret else args.values // 4
    print(
        f"\n{'all-reduce':30} {'bytes over the bus':>18} {'device, ms':>11} {'host, ms':>9}   (n = {few:,})"
    )
    for spec in args.codecs:
        plan = Plan(parse(spec), residual=args.residual, segment_nbytes=args.segment)
        show_crossings(plan, few, device)
    return 0


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("codecs", nargs="*", default=SPECS, help="codecs; by default, one of each format")
    parser.add_argument("--values", type=int, help="float32 values to measure with; by default 2^26")
    parser.add_argument(
        "--identity-values", type=int, help="float32 values to compare; by default 100 million"
    )
    parser.add_argument("--segment", type=int, default=1 << 24, help="bytes of a segment; by default 2^24")
    parser.add_argument(
        "--residual", action="store_true", help="use error feedback, with residuals on the device"
    )
    parser.add_argument("--interpret", action="store_true", help="run without a GPU, and measure no speed")
    args = parser.parse_args(arguments)
    few = 300 if args.interpret else None
    args.values = args.values or few or 1 << 26
    args.identity_values = args.identity_values or few or 100_000_000
    return args


@cache
def gradient(n: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).laplace(0.0, 1e-3, n).astype(np.float32))


@cache
def random_bits(n: int) -> torch.Tensor:
    """Return random bit patterns, some of which are NaN, infinite, or subnormal."""
    bits = np.random.default_rng(2).integers(0, 1 << 32, n, dtype=np.uint32)
    bits[:: 1 << 20] = 0x7F800000
    return torch.from_numpy(bits.view(np.float32))


def differences(codec: Codec, n: int, device: torch.device) -> Iterator[str]:
    """Yield a description of each result that differs from the host's."""
    for kind, x in ("gradients", gradient(n)), ("random bits", random_bits(n)):
        wanted, encoded = codec.encode(x), gpu.encode(codec, x.to(device))
        payload = encoded.payload().clone()
        if not torch.equal(payload.cpu(), wanted):
            yield f"{codec} encodes {kind} to different bytes than the host"
            payload = wanted.to(device, copy=True)
        out, acc = torch.empty_like(x), gradient(n, 3).clone()
        there, sums = torch.empty_like(x, device=device), acc.to(device, copy=True)
        gpu.decode(codec, payload, there).check()
        gpu.decode_add(codec, payload, sums).check()
        codec.decode(wanted, out)
        codec.decode_add(wanted, acc)
        for what, here, host in (("decodes", there, out), ("adds", sums, acc)):
            if not torch.equal(here.cpu().view(torch.int32), host.view(torch.int32)):
                yield f"{codec} {what} {kind} to different bits than the host"


def measure(specs: Sequence[str], n: int, device: torch.device) -> None:
    """Print the speeds of encode, decode, and decode_add."""
    x = gradient(n).to(device)
    spare = torch.empty_like(x)

    def copy() -> None:
        spare.copy_(x)

    copy_s, _ = median_s(copy, copy, device)
    print(
        f"{'codec':30} {'encode':>8} {'decode':>8} {'add':>8} {'queue, us':>10}   (shares of a device copy)"
    )
    for spec in specs:
        taken = list(times_s(parse(spec), x, copy))
        shares = " ".join(f"{copy_s / device_s:8.2f}" for device_s, _ in taken)
        print(f"{spec:30} {shares} {taken[0][1] * 1e6:10.0f}", flush=True)
    print(f"copy: {8 * n / copy_s / 1e9:.0f} GB/s read and written")


def times_s(codec: Codec, x: torch.Tensor, ahead: Callable[[], None]) -> Iterator[tuple[float, float]]:
    """Yield the median seconds of encode, decode, and decode_add, on the device and on the host."""
    encoded = gpu.encode(codec, x)
    payload, out = encoded.payload().clone(), torch.zeros_like(x)
    yield median_s(lambda: gpu.encode(codec, x, encoded.buffer), ahead, x.device)
    yield median_s(lambda: gpu.decode(codec, payload, out), ahead, x.device)
    yield median_s(lambda: gpu.decode_add(codec, payload, out), ahead, x.device)


def median_s(
    call: Callable[[], object], ahead: Callable[[], None], device: torch.device
) -> tuple[float, float]:
    call()
    repeats = REPEATS if device.type == "cuda" else 1
    taken = [seconds(call, ahead, device) for _ in range(repeats)]
    device_s, host_s = (float(statistics.median(each)) for each in zip(*taken, strict=True))
    return device_s, host_s


def seconds(
    call: Callable[[], object], ahead: Callable[[], None], device: torch.device
) -> tuple[float, float]:
    """Return the device's seconds for a call after all previous work, and the host's seconds to queue it."""
    if device.type == "cpu":
        started = perf_counter()
        call()
        return (taken_s := perf_counter() - started), taken_s
    for _ in range(AHEAD):
        ahead()
    start, end = _event(), _event()
    start.record()
    started = perf_counter()
    call()
    host_s = perf_counter() - started
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000, host_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def show_crossings(plan: Plan, n: int, device: torch.device) -> None:
    """Run all-reduces between two ranks; print the bytes that cross each bus, and the median times."""
    taken_ms = []
    for encodes_here in (True, False):
        ranks = [Rank(link, plan, n, device, encodes_here) for link in loopback(2, timeout_s=600.0)]
        all_reduce(ranks)  # untimed warm-up
        times = []
        for _ in range(3):
            began = perf_counter()
            all_reduce(ranks)
            times.append(perf_counter() - began)
        taken_ms.append(f"{statistics.median(times) * 1e3:.1f}" if device.type == "cuda" else "")
        if encodes_here:
            with nullcontext() if device.type == "cpu" else torch.profiler.profile() as trace:
                costs = all_reduce(ranks)
    crossed = max(cost.device_nbytes for cost in costs)
    print(f"{plan.codec!s:30} {crossed / (8 * n):18.3f} {taken_ms[0]:>11} {taken_ms[1]:>9}", flush=True)
    names = Counter(event.name for event in trace.events()) if trace is not None else Counter[str]()
    found = {name: count for name, count in names.items() if name in SYNCHRONISES or PAGEABLE in name}
    if found:
        raise SystemExit(
            f"{plan.codec}: expected no stream synchronizations or pageable copies in the trace, got {found}"
            "; please report this bug"
        )


class Rank:
    """One of two ranks, a thread with a gradient and a stream on the device that both ranks share.

    With ``encodes_here``, the rank encodes on the device; otherwise, it copies the floats to the host and
    back.
    """

    def __init__(self, link: Link, plan: Plan, n: int, device: torch.device, encodes_here: bool) -> None:
        self._exchange = Exchange(link, plan)
        self._floats = None if encodes_here else torch.empty(n, pin_memory=device.type == "cuda")
        self._x = gradient(n, link.rank).to(device, copy=True)
        kept = self._x if self._floats is None else self._floats
        self._residual = torch.zeros_like(kept) if plan.keeps_residual else None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cpu":
            simulated = Simulated()
            simulated.own(self._x)
            if self._residual is not None and encodes_here:
                simulated.own(self._residual)
        else:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def all_reduce(self) -> ExchangeCost:
        """Run the all-reduce on this rank's stream."""
        with torch.cuda.stream(self._stream):
            if self._floats is None:
                return self._exchange.all_reduce(self._x, residual=self._residual)
            self._floats.copy_(self._x)
            cost = self._exchange.all_reduce(self._floats, residual=self._residual)
            self._x.copy_(self._floats)
            return cost


def all_reduce(ranks: list[Rank]) -> list[ExchangeCost]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        return [each.result() for each in [threads.submit(rank.all_reduce) for rank in ranks]]


if __name__ == "__main__":
    sys.exit(main())
