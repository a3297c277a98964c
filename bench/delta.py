"""Measure weight deltas and the entropy coder, compared with memcpy in the same run.

Synthetic weights take AdamW steps at several learning rates; every step's delta is encoded, and applied to
the receiver's weights, in bfloat16 or float32 (``--words``). A memcpy of the float32 master weights precedes
each call, and the table shows medians: the share of memcpy is the time of that memcpy divided by the time of
the call, regardless of the bytes moved. Bits are per weight in the last step, including the header;
``entropy`` is the zeroth-order entropy of the last step's differences in units of the last place.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from gradwire import _native, entropy
from gradwire.entropy.delta import WordName, words_dtype
from gradwire.machine import describe_machine

RATES = (3e-6, 3e-5, 1e-4, 1e-3)
WARM_STEPS = 12
SCALES = (0.02, 0.05, 0.2)
"""Standard deviations of the weights, because layers differ."""


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass
class Shares:
    """The times of repeated calls, and of the memcpy before each call."""

    nbytes: int
    calls: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)

    def add(self, call: Callable[[], object], memcpy: Callable[[], object]) -> None:
        """Time a memcpy, then the call."""
        self.copies.append(seconds(memcpy))
        self.calls.append(seconds(call))

    @property
    def gbps(self) -> float:
        """The calls' median speed."""
        return self.nbytes / statistics.median(self.calls) / 1e9

    @property
    def of_memcpy(self) -> float:
        """The speed as a share of memcpy's speed."""
        return statistics.median(self.copies) / statistics.median(self.calls)


def memcpy_of(x: torch.Tensor) -> Callable[[], object]:
    copy = torch.zeros_like(x)
    return lambda: np.copyto(copy.numpy(), x.numpy())


class AdamW:
    """Master weights updated by AdamW steps whose gradients are noise around a small drift."""

    def __init__(self, n: int, lr: float) -> None:
        self._noise = torch.Generator().manual_seed(1)
        parts = torch.randn(n, generator=self._noise).tensor_split(len(SCALES))
        self.masters = torch.cat([scale * part for scale, part in zip(SCALES, parts, strict=True)])
        self._drift = 0.3 * torch.randn(n, generator=self._noise)
        self._lr = lr
        self._mean = torch.zeros(n)
        self._square = torch.zeros(n)
        self._step = 0
        for _ in range(WARM_STEPS):
            self.step()

    def step(self) -> None:
        """Update the master weights."""
        self._step += 1
        gradient = torch.randn(self.masters.numel(), generator=self._noise).add_(self._drift)
        self._mean.lerp_(gradient, 0.1)
        self._square.lerp_(gradient.square_(), 0.001)
        root = (self._square / (1 - 0.999**self._step)).sqrt_().add_(1e-8)
        self.masters.mul_(1 - 0.01 * self._lr)
        self.masters.addcdiv_(self._mean, root, value=-self._lr / (1 - 0.9**self._step))


def difference_bits(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the entropy of the differences in units of the last place, in bits per weight."""

    def ordered(weights: torch.Tensor) -> torch.Tensor:
        words = weights.view(torch.int16 if weights.itemsize == 2 else torch.int32).long()
        return torch.where(words < 0, words ^ (0x7FFF if weights.itemsize == 2 else 0x7FFF_FFFF), words)

    counts = torch.unique(ordered(after) - ordered(before), return_counts=True)[1].double()
    return float((counts * torch.log2(counts.sum() / counts)).sum() / counts.sum())


@dataclass(frozen=True)
class Result:
    """The bits per weight and the speeds of the deltas at one learning rate."""

    bound: float
    bits: float
    encode: Shares
    decode: Shares


def deltas(model: AdamW, words: WordName, *, coded: bool, repeats: int) -> Result:
    """Take steps and measure their deltas; check that the receiver's bits are the rounded master weights."""
    masters = model.masters
    encoder, decoder = entropy.DeltaEncoder(masters, words, entropy=coded), entropy.DeltaDecoder(words)
    weights = torch.zeros(masters.numel(), dtype=words_dtype(words))
    out = torch.zeros(encoder.max_nbytes, dtype=torch.uint8)
    decoder.apply(encoder.encode(masters, 0, out=out), weights)
    memcpy = memcpy_of(masters)
    encode, decode = Shares(4 * masters.numel()), Shares(4 * masters.numel())
    bound, nbytes = 0.0, 0
    for version in range(1, repeats + 1):
        before = masters.to(weights.dtype, copy=True)
        model.step()
        kept: list[torch.Tensor] = []
        encode.add(lambda v=version, k=kept: k.append(encoder.encode(masters, v, out=out)), memcpy)  # type: ignore[misc]
        decode.add(lambda k=kept: decoder.apply(k[0], weights), memcpy)  # type: ignore[misc]
        nbytes = kept[0].numel()
        assert torch.equal(weights, masters.to(weights.dtype)), "the receiver's weights differ"
        bound = difference_bits(before, weights) if version == repeats else 0.0
    return Result(bound, 8 * nbytes / masters.numel(), encode, decode)


def print_deltas(args: argparse.Namespace, targets: list[str]) -> None:
    print(f"{'lr':>8} {'target':8}{'entropy':>8}{'bits':>7}{'ratio':>7}{'encode':>8}{'decode':>8}", end="")
    print(f"{'2-bit':>8}{'ratio':>7}{'encode':>8}{'decode':>8}{'memcpy':>8}")
    for lr in args.rates:
        model = AdamW(args.elements, lr)
        for target in targets:
            with _native.use_target(target):
                coded = deltas(model, args.words, coded=True, repeats=args.repeats)
                classes = deltas(model, args.words, coded=False, repeats=args.repeats)
            copies = statistics.median(coded.encode.copies + classes.encode.copies)
            print(f"{lr:8.0e} {target:8}{coded.bound:8.2f}", end="")
            for each in (coded, classes):
                whole = 8 * words_dtype(args.words).itemsize
                print(f"{each.bits:7.2f}{whole / each.bits:7.1f}x{each.encode.of_memcpy:7.2f}", end="")
                print(f"{each.decode.of_memcpy:8.2f}", end=" ")
            print(f"{4 * args.elements / copies / 1e9:7.2f}", flush=True)


def symbol_sets(n: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and symbols: nearly constant, small alphabets, and uniformly random."""
    rng = np.random.default_rng(1)
    for alphabet, share in ((256, 0.9), (256, 0.3), (16, 0.3), (3, 0.5), (256, 1 / 256)):
        rest = rng.integers(0, alphabet, n)
        symbols = np.where(rng.random(n) < share, 0, np.minimum(rest, rng.integers(0, alphabet, n)))
        chosen = rest if share == 1 / 256 else symbols
        yield f"{alphabet} symbols, {share:.2f} zero", torch.from_numpy(chosen.astype(np.uint8))


def print_coder(args: argparse.Namespace, targets: list[str]) -> None:
    print(f"\n{'symbols':28}{'target':8}{'entropy':>8}{'bits':>7}{'encode':>15}{'decode':>15}")
    for name, symbols in symbol_sets(args.elements):
        counts = torch.bincount(symbols.int()).double().clamp_(min=1e-9) / symbols.numel()
        bound = float(-(counts * counts.log2()).sum())
        out = torch.zeros(entropy.max_nbytes(symbols.numel()), dtype=torch.uint8)
        decoded, memcpy = torch.zeros_like(symbols), memcpy_of(symbols)
        for target in targets:
            encode, decode = Shares(symbols.numel()), Shares(symbols.numel())
            with _native.use_target(target):
                payload = entropy.encode(symbols, out)
                for _ in range(args.repeats):
                    encode.add(lambda s=symbols, o=out: entropy.encode(s, o), memcpy)  # type: ignore[misc]
                    decode.add(lambda p=payload, d=decoded: entropy.decode(p, d), memcpy)  # type: ignore[misc]
            assert torch.equal(decoded, symbols), "decoded symbols differ from the encoded ones"
            print(f"{name:28}{target:8}{bound:8.3f}{8 * payload.numel() / symbols.numel():7.3f}", end="")
            print(f"{encode.gbps:8.2f} GB/s{decode.gbps:8.2f} GB/s", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=1 << 24, help="weights; default: 16777216")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--repeats", type=int, default=9, help="steps per row; default: 9")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="learning rates")
    parser.add_argument(
        "--words", choices=("bf16", "fp32"), default="bf16", help="format of the receiver's weights"
    )
    parser.add_argument("--targets", choices=("all", "current"), default="all")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    os.environ["GRADWIRE_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    targets = _native.available_targets() if args.targets == "all" else [_native.target()]
    print(describe_machine(threads=args.threads), flush=True)
    print("encode, decode: speed as a share of memcpy of the float32 masters; memcpy: GB/s", flush=True)
    print_deltas(args, targets)
    print_coder(args, targets)


if __name__ == "__main__":
    main()
