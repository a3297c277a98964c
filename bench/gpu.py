"""Measure the kernels of gradwire.gpu on the GPU of this machine, as shares of a device copy in the same run.

First every codec's bytes, decoded bits and sums are compared with the host's, for random values with NaN,
infinities and subnormals among them. A speed is the float bytes of a call, 4 n, over its median time. The
copy moves the same n floats from one place of the device's memory to another.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from gradwire import gpu
from gradwire.codecs import Codec, parse

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
)
REPEATS = 20


def main() -> int:
    args = parse_args()
    if not torch.cuda.is_available():
        sys.stdout.write("This machine has no GPU that PyTorch sees, so nothing was measured.\n")
        return 0
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {args.values:,} float32")
    for spec in args.codecs:
        compare(parse(spec), args.identity_values, device)
    print(f"bytes, bits and sums are the host's for {args.identity_values:,} random values of every kind\n")
    x = gradient(args.values).to(device)
    spare = torch.empty_like(x)
    copy_s = median_s(lambda: spare.copy_(x))
    print(f"{'codec':30} {'encode':>8} {'decode':>8} {'add':>8}   (shares of a device copy)")
    for spec in args.codecs:
        print(
            f"{spec:30} " + " ".join(f"{copy_s / each:8.2f}" for each in times_s(parse(spec), x)), flush=True
        )
    print(f"copy: {8 * args.values / copy_s / 1e9:.0f} GB/s read and written")
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("codecs", nargs="*", default=SPECS, help="specs; by default one of each format")
    parser.add_argument("--values", type=int, default=1 << 26, help="float32 to measure with")
    parser.add_argument(
        "--identity-values", type=int, default=100_000_000, help="float32 to compare with the host"
    )
    return parser.parse_args()


def gradient(n: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).laplace(0.0, 1e-3, n).astype(np.float32))


def compare(codec: Codec, n: int, device: torch.device) -> None:
    """Stop with an error where the GPU's result is not the host's."""
    for kind, x in inputs(n):
        wanted, encoded = codec.encode(x), gpu.encode(codec, x.to(device))
        if not torch.equal(encoded.payload().cpu(), wanted):
            raise SystemExit(f"{codec} encodes {kind} to other bytes than the host")
        out, acc = torch.empty_like(x), gradient(n)
        payload = encoded.payload().clone()
        there, sums = torch.empty_like(x, device=device), acc.to(device)
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


def times_s(codec: Codec, x: torch.Tensor) -> Iterator[float]:
    """Yield the median seconds of encode, decode and decode_add."""
    encoded = gpu.encode(codec, x)
    payload, out = encoded.payload().clone(), torch.zeros_like(x)
    yield median_s(lambda: gpu.encode(codec, x, encoded.buffer))
    yield median_s(lambda: gpu.decode(codec, payload, out))
    yield median_s(lambda: gpu.decode_add(codec, payload, out))


def median_s(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        start, end = _event(), _event()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(statistics.median(times))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main())
