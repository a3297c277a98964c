"""Measure the kernels of gradwire.gpu on the GPU of this machine, as shares of a device copy in the same run.

First every codec's bytes, decoded bits, and sums are compared with the host's, for random values with NaN,
infinities, and subnormals among them. A speed is the float bytes of a call, 4 n, over its median time. The
copy moves the same n floats from one place of the device's memory to another.

Then two ranks, which are threads, all-reduce a gradient that is encoded on the device. The bytes that cross
the bus are compared with those of copying the floats, and a trace shows that no stream is synchronised and
that nothing is copied to or from pageable memory.

``--interpret`` does the same on the CPU, with few values, a simulated device, and Triton's interpreter. It
shows that this script and the kernels work, and nothing about speed.
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
from time import perf_counter

import numpy as np
import torch

from gradwire import gpu, loopback
from gradwire.codecs import Codec, parse
from gradwire.costs import ExchangeCost
from gradwire.devices import Simulated
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan

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
SYNCHRONISES = {"cudaStreamSynchronize"}  # the profiler itself synchronises the device at its end
PAGEABLE = "Pageable"
"""What the profiler's name of a copy says if it is through memory that is not pinned."""


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
    for spec in args.codecs:
        compare(parse(spec), args.identity_values, device)
    print(f"bytes, bits and sums are the host's for {args.identity_values:,} random values of every kind\n")
    measure(args.codecs, args.values, device)
    print(f"\n{'codec':30} {'bytes over the bus':>18}   (shares of copying the floats there and back)")
    for spec in args.codecs:
        show_crossings(Plan(parse(spec), residual=args.residual), args.values, device)
    return 0


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("codecs", nargs="*", default=SPECS, help="specs; by default one of each format")
    parser.add_argument("--values", type=int, help="float32 to measure with; by default 2^26")
    parser.add_argument("--identity-values", type=int, help="float32 to compare; by default 100 million")
    parser.add_argument("--residual", action="store_true", help="keep residuals on the device")
    parser.add_argument("--interpret", action="store_true", help="need no GPU, and measure nothing")
    args = parser.parse_args(arguments)
    few = 300 if args.interpret else None
    args.values = args.values or few or 1 << 26
    args.identity_values = args.identity_values or few or 100_000_000
    return args


def gradient(n: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).laplace(0.0, 1e-3, n).astype(np.float32))


def compare(codec: Codec, n: int, device: torch.device) -> None:
    """Stop with an error where the GPU's result is not the host's."""
    for kind, x in inputs(n):
        wanted, encoded = codec.encode(x), gpu.encode(codec, x.to(device))
        if not torch.equal(encoded.payload().cpu(), wanted):
            raise SystemExit(f"{codec} encodes {kind} to other bytes than the host")
        out, acc = torch.empty_like(x), gradient(n)
        payload = encoded.payload().clone()
        there, sums = torch.empty_like(x, device=device), acc.to(device, copy=True)
        gpu.decode(codec, payload, there).check()
        gpu.decode_add(codec, payload, sums).check()
        codec.decode(wanted, out)
        codec.decode_add(wanted, acc)
        for what, here, host in (("decodes", there, out), ("adds", sums, acc)):
            if not torch.equal(here.cpu().view(torch.int32), host.view(torch.int32)):
                raise SystemExit(f"{codec} {what} {kind} to other bits than the host")


def inputs(n: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield values like gradients, and all bit patterns: a share of these are NaN, infinite or subnormal."""
    yield "gradients", gradient(n)
    bits = np.random.default_rng(2).integers(0, 1 << 32, n, dtype=np.uint32)
    bits[:: 1 << 20] = 0x7F800000
    yield "random bits", torch.from_numpy(bits.view(np.float32))


def measure(specs: Sequence[str], n: int, device: torch.device) -> None:
    """Print the speeds of encode, decode and decode_add."""
    x = gradient(n).to(device)
    spare = torch.empty_like(x)
    copy_s = median_s(lambda: spare.copy_(x), device)
    print(f"{'codec':30} {'encode':>8} {'decode':>8} {'add':>8}   (shares of a device copy)")
    for spec in specs:
        shares = (copy_s / each for each in times_s(parse(spec), x))
        print(f"{spec:30} " + " ".join(f"{each:8.2f}" for each in shares), flush=True)
    print(f"copy: {8 * n / copy_s / 1e9:.0f} GB/s read and written")


def times_s(codec: Codec, x: torch.Tensor) -> Iterator[float]:
    """Yield the median seconds of encode, decode and decode_add."""
    encoded = gpu.encode(codec, x)
    payload, out = encoded.payload().clone(), torch.zeros_like(x)
    yield median_s(lambda: gpu.encode(codec, x, encoded.buffer), x.device)
    yield median_s(lambda: gpu.decode(codec, payload, out), x.device)
    yield median_s(lambda: gpu.decode_add(codec, payload, out), x.device)


def median_s(call: Callable[[], object], device: torch.device) -> float:
    call()
    repeats = REPEATS if device.type == "cuda" else 1
    return float(statistics.median(seconds(call, device) for _ in range(repeats)))


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return how long the device takes for a call, once all before is done."""
    if device.type == "cpu":
        started = perf_counter()
        call()
        return perf_counter() - started
    start, end = _event(), _event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def show_crossings(plan: Plan, n: int, device: torch.device) -> None:
    """All-reduce between two ranks twice, once to warm up; print what crosses the bus of each."""
    ranks = [Rank(link, plan, n, device) for link in loopback(2, timeout_s=600.0)]
    all_reduce(ranks)
    with nullcontext() if device.type == "cpu" else torch.profiler.profile() as trace:
        costs = all_reduce(ranks)
    crossed = max(cost.device_nbytes for cost in costs)
    print(f"{plan.codec!s:30} {crossed / (8 * n):18.3f}", flush=True)
    names = Counter(event.name for event in trace.events()) if trace is not None else Counter[str]()
    found = {name: count for name, count in names.items() if name in SYNCHRONISES or PAGEABLE in name}
    if found:
        raise SystemExit(f"{plan.codec}: the trace has {found}; the host should wait for events only")


class Rank:
    """One of two ranks, which are threads on one device, with a gradient there and a stream."""

    def __init__(self, link: Link, plan: Plan, n: int, device: torch.device) -> None:
        self._exchange = Exchange(link, plan)
        self._x = gradient(n, link.rank).to(device)
        self._residual = torch.zeros_like(self._x) if plan.keeps_residual else None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cpu":
            simulated = Simulated()
            for each in (self._x, self._residual):
                if each is not None:
                    simulated.own(each)
        else:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def all_reduce(self) -> ExchangeCost:
        """Do it on this rank's stream."""
        with torch.cuda.stream(self._stream):
            return self._exchange.all_reduce(self._x, residual=self._residual)


def all_reduce(ranks: list[Rank]) -> list[ExchangeCost]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        return [each.result() for each in [threads.submit(rank.all_reduce) for rank in ranks]]


if __name__ == "__main__":
    sys.exit(main())
