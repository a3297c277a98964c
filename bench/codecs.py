# ruff: noqa: A005 - a script named after its subject; nothing imports it
"""Measure every codec on every instruction set, compared with a memcpy of the same array in the same run.

A memcpy of the same array precedes every call of a codec, and the table shows medians, so that a noisy
machine disturbs the memcpy and the call equally. Speeds are float bytes per second: 4 n bytes divided by the
time of a call. Other compressors (PyTorch's casts, Zstandard, and, if installed by `pip install zfpy pysz
cramjam`, zfp, SZ3, and Snappy) run in the same loop.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from gradwire import _native
from gradwire.codecs import Codec, parse
from gradwire.codecs.native import NativeCodec
from gradwire.machine import describe_machine
from gradwire.page import keep
from gradwire.records import make_record
from gradwire_lab.benchmark.codec_page import SCHEMA, page_of

SPECS = (
    "identity",
    "fp16",
    "bf16",
    "inceptionn:2^-10",
    "inceptionn:2^-10,bounded",
    "errbound:2^-10",
    "errbound:rel=0.05",
    "errbound:rel=0.25,block=1024",
    "truncate:16",
    "truncate:22",
    "truncate:24",
    "quantize:8",
    "quantize:4",
    "bfp:7x16",
    "fp8",
    "bitpack:1",
    "bitpack:2",
    "bitpack:3",
    "ecsq:0.5",
    "ecsq:1",
    "terngrad",
    "topk:0.01",
    "lossless",
)
PEER_BOUND = 2.0**-10
MIN_REPEATS, MAX_REPEATS, BUDGET_S = 5, 100, 0.5


@dataclass(frozen=True)
class Subject:
    """A codec or compressor to measure: calls without arguments, and access to their results."""

    name: str
    target: str
    encode: Callable[[], object]
    decode: Callable[[], object]
    decode_add: Callable[[], object] | None
    nbytes: Callable[[], int]
    decoded: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Speed:
    """The median speed of a call, and of the memcpy that precedes it."""

    gbps: float
    memcpy_gbps: float

    @property
    def of_memcpy(self) -> float:
        """The speed as a share of memcpy's speed."""
        return self.gbps / self.memcpy_gbps


@dataclass(frozen=True)
class Result:
    """One row of the table: the ratio, error, and speeds of a codec on a target."""

    name: str
    target: str
    ratio: float
    max_error: float
    encode: Speed
    decode: Speed
    decode_add: Speed | None


def time_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(call: Callable[[], object], memcpy: Callable[[], object], nbytes: int) -> Speed:
    """Alternate a memcpy and the call until the budget is spent; return the median speeds."""
    call()
    copies: list[float] = []
    calls: list[float] = []
    while len(calls) < MIN_REPEATS or (len(calls) < MAX_REPEATS and sum(calls) < BUDGET_S):
        copies.append(time_s(memcpy))
        calls.append(time_s(call))
    return Speed(nbytes / statistics.median(calls) / 1e9, nbytes / statistics.median(copies) / 1e9)


def codec_subject(codec: Codec, target: str, x: torch.Tensor) -> Subject:
    """Return a codec to measure, with all buffers allocated beforehand, as in an exchange."""
    out = torch.zeros(codec.max_nbytes(x.numel()), dtype=torch.uint8)
    decoded = torch.zeros_like(x)
    acc = torch.zeros_like(x)
    payload = codec.encode(x, out)
    return Subject(
        str(codec),
        target,
        encode=lambda: codec.encode(x, out),
        decode=lambda: codec.decode(payload, decoded),
        decode_add=lambda: codec.decode_add(payload, acc),
        nbytes=payload.numel,
        decoded=lambda: decoded,
    )


def cast_subject(dtype: torch.dtype, x: torch.Tensor) -> Subject:
    """Return PyTorch's own cast to measure, in both directions."""
    half = torch.zeros(x.numel(), dtype=dtype)
    decoded = torch.zeros_like(x)
    acc = torch.zeros_like(x)
    return Subject(
        f"torch {str(dtype).removeprefix('torch.')} copy_",
        "peer",
        encode=lambda: half.copy_(x),
        decode=lambda: decoded.copy_(half),
        decode_add=lambda: acc.add_(half),
        nbytes=lambda: 2 * x.numel(),
        decoded=lambda: decoded,
    )


def peer_subject(
    name: str, x: torch.Tensor, compress: Callable[[Any], Any], decompress: Callable[[Any], Any]
) -> Subject:
    """Return another library's compressor to measure. The compressor allocates its own results."""
    data = x.numpy()
    kept: dict[str, Any] = {}

    def encode() -> None:
        kept["payload"] = compress(data)

    def decode() -> None:
        kept["decoded"] = decompress(kept["payload"])

    def decoded() -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(memoryview(kept["decoded"]).cast("B"), dtype=np.float32).copy())

    return Subject(name, "peer", encode, decode, None, lambda: len(kept["payload"]), decoded)


def zstd_subject(x: torch.Tensor) -> Subject:
    return peer_subject(
        "zstd -1",
        x,
        lambda data: zstandard.ZstdCompressor(level=1).compress(data),
        lambda payload: zstandard.ZstdDecompressor().decompress(payload),
    )


def zfp_subject(x: torch.Tensor) -> Subject:
    zfpy = importlib.import_module("zfpy")
    return peer_subject(
        "zfp 2^-10", x, lambda data: zfpy.compress_numpy(data, tolerance=PEER_BOUND), zfpy.decompress_numpy
    )


def sz3_subject(x: torch.Tensor) -> Subject:
    pysz = importlib.import_module("pysz")
    config = pysz.szConfig()
    config.errorBoundMode = pysz.szErrorBoundMode.ABS
    config.absErrorBound = PEER_BOUND
    return peer_subject(
        "sz3 2^-10",
        x,
        lambda data: pysz.sz.compress(data, config)[0],
        lambda payload: pysz.sz.decompress(payload, np.float32, (x.numel(),))[0],
    )


def snappy_subject(x: torch.Tensor) -> Subject:
    snappy = importlib.import_module("cramjam").snappy
    return peer_subject(
        "snappy", x, lambda data: snappy.compress_raw(data.view(np.uint8)), snappy.decompress_raw
    )


PEERS: dict[str, Callable[[torch.Tensor], Subject]] = {
    "torch fp16": lambda x: cast_subject(torch.float16, x),
    "torch bf16": lambda x: cast_subject(torch.bfloat16, x),
    "zstd": zstd_subject,
    "zfp (zfpy)": zfp_subject,
    "SZ3 (pysz)": sz3_subject,
    "Snappy (cramjam)": snappy_subject,
}


def judge(subject: Subject, x: torch.Tensor) -> Result:
    """Measure the calls and the largest error of one subject."""
    copy = torch.zeros_like(x)
    nbytes = 4 * x.numel()

    def memcpy() -> None:
        np.copyto(copy.numpy(), x.numpy())

    encode = measure(subject.encode, memcpy, nbytes)
    decode = measure(subject.decode, memcpy, nbytes)
    decode_add = measure(subject.decode_add, memcpy, nbytes) if subject.decode_add else None
    error = float((subject.decoded() - x).abs().max())
    return Result(subject.name, subject.target, nbytes / subject.nbytes(), error, encode, decode, decode_add)


def judge_codecs(specs: list[str], targets: list[str], x: torch.Tensor) -> Iterator[Result]:
    """Measure every codec on every target, or once if the codec has no compiled kernels."""
    for spec in specs:
        codec = parse(spec)
        for target in targets if isinstance(codec, NativeCodec) else ["python"]:
            with _native.use_target(target) if target != "python" else nullcontext():
                yield judge(codec_subject(codec, target, x), x)


def judge_peers(x: torch.Tensor) -> Iterator[Result]:
    """Measure the installed peers, and print the names of the missing peers."""
    for name, make in PEERS.items():
        try:
            subject = make(x)
        except ImportError:
            print(f"{name}: not installed")
            continue
        yield judge(subject, x)


def read_data(text: str, n: int) -> torch.Tensor:
    """Generate ``n`` values of ``laplace:1e-3`` or ``normal:2e-3``, or read ``n`` values from a .npy file."""
    kind, _, scale = text.partition(":")
    rng = np.random.default_rng(1)
    if kind == "laplace":
        values = rng.laplace(0.0, float(scale), n)
    elif kind == "normal":
        values = rng.normal(0.0, float(scale), n)
    else:
        values = np.resize(np.load(text).ravel(), n)
    return torch.from_numpy(values.astype(np.float32))


def read_count(text: str) -> int:
    """Parse a count such as 4096, 64Ki, or 16Mi."""
    match = re.fullmatch(r"(\d+)(Ki|Mi)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a count such as 4096, 64Ki, or 16Mi, got {text!r}; pass a whole number"
        )
    return int(match[1]) * {None: 1, "Ki": 1 << 10, "Mi": 1 << 20}[match[2]]


def show(speed: Speed | None) -> str:
    return f"{speed.gbps:8.2f} {speed.of_memcpy:5.2f}" if speed else f"{'-':>8} {'-':>5}"


def print_header(machine: dict[str, object], args: argparse.Namespace) -> None:
    print(
        f"{machine['processor']}, {machine['cores']} cores; {args.threads} thread(s), "
        f"{args.elements} x {args.data}"
    )
    print("Speeds in GB/s of floats, and as a share of memcpy of the same array before each call.")
    print(f"{'codec':30}{'target':8}{'ratio':>8}{'max error':>11}", end="")
    print("".join(f"{name:>15}" for name in ("encode", "decode", "decode_add")), f"{'memcpy':>8}")


def print_result(result: Result) -> None:
    print(f"{result.name:30}{result.target:8}{result.ratio:8.2f}{result.max_error:11.2e}", end=" ")
    speeds = (result.encode, result.decode, result.decode_add)
    copies = [speed.memcpy_gbps for speed in speeds if speed]
    print(" ".join(show(speed) for speed in speeds), f"{statistics.median(copies):8.2f}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the record to this file, and its page next to it")
    parser.add_argument("--elements", type=read_count, default=read_count("16Mi"), help="default: 16Mi")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--targets", choices=("all", "current"), default="all")
    parser.add_argument("--codecs", nargs="+", default=list(SPECS), metavar="SPEC")
    parser.add_argument("--data", default="laplace:1e-3", help="laplace:SCALE, normal:SCALE or a .npy file")
    parser.add_argument("--no-peers", action="store_true", help="omit PyTorch's casts and other compressors")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    os.environ["GRADWIRE_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    x = read_data(args.data, args.elements)
    targets = _native.available_targets() if args.targets == "all" else [_native.target()]
    print_header(describe_machine(), args)
    results = []
    for result in judge_codecs(args.codecs, targets, x):
        print_result(result)
        results.append(result)
    for result in () if args.no_peers else judge_peers(x):
        print_result(result)
        results.append(result)
    if args.json:
        options = {"elements": args.elements, "data": args.data, "threads": args.threads, "targets": targets}
        fields = {"options": options, "results": [asdict(each) for each in results]}
        keep(args.json, make_record(SCHEMA, fields, target=_native.target()), page_of)


if __name__ == "__main__":
    main()
