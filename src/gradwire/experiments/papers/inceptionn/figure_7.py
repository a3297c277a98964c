"""Figure 7: the training time with compression in software, by the codecs' measured rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import log2
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import (
    RATIO,
    Bound,
    Claim,
    Explanation,
    Published,
    at_least,
    at_most,
    only,
)
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.inceptionn.table_2 import ITERATIONS, NBYTES, STEPS, WORKERS

if TYPE_CHECKING:
    import torch

PLACE = "figure 7"
ZLIB = "zlib:1"
"""In the place of Snappy: a general compressor without loss, at its fastest level."""
SZ = "sz:2^-10"
"""SZ3, the present version of SZ, with an absolute bound; from the package pysz, where it is installed."""
CODECS = (ZLIB, SZ, "lossless", "truncate:16", "inceptionn:2^-10")
NETWORK = "AlexNet"
SLOWER, SNAPPY_RATIO = (2.0, 4.0), 1.5
GRADIENTS = WORKERS / (WORKERS + log2(WORKERS))
"""The share of gradients in the communication of an aggregator, by its formula; weights are the rest."""
VECTORS = "kernels here encode and decode gigabytes per second on one core, with vector instructions."


@dataclass(frozen=True)
class Options:
    """Codecs, and how often each encodes."""

    codecs: tuple[str, ...]
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each codec that is installed."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    has_sz = find_spec("pysz") is not None
    known = [codec for codec in options.codecs if codec != SZ or has_sz]
    return [{"codec": codec, "model": "hdc", "data": data_name()} for codec in known]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Time a codec on a gradient from the middle of a training, on one thread."""
    from gradwire.experiments.papers.inceptionn.training import dataset, one_thread, train

    kept: list[torch.Tensor] = []

    def watch(_step: int, gradient: torch.Tensor, _sent: torch.Tensor) -> None:
        kept[:] = [gradient]

    train(dataset(cell["data"]), cell["model"], 4, 1, watch=watch, most_steps=14)
    with one_thread(1):
        return _timed(cell["codec"], kept[0], options.repeats)


def _timed(codec: str, gradient: torch.Tensor, repeats: int) -> Mapping[str, Any]:
    import time

    encode, decode = _functions(codec, gradient)
    encoding, decoding, payload = list[float](), list[float](), encode()
    decode(payload)
    for _ in range(repeats):
        began = time.perf_counter()
        payload = encode()
        encoded = time.perf_counter()
        decode(payload)
        encoding.append(encoded - began)
        decoding.append(time.perf_counter() - encoded)
    return {
        "nbytes": 4 * gradient.numel(),
        "payload_nbytes": len(payload),
        "encode_s": encoding,
        "decode_s": decoding,
    }


def _functions(codec: str, gradient: torch.Tensor) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    import zlib

    import torch

    from gradwire.codecs import parse

    if codec == ZLIB:
        return lambda: zlib.compress(gradient.numpy().tobytes(), 1), zlib.decompress
    if codec == SZ:
        return _sz(gradient)
    made, out = parse(codec), torch.empty_like(gradient)
    return lambda: made.encode(gradient), lambda payload: made.decode(payload, out)


def _sz(gradient: torch.Tensor) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from pysz import sz, szConfig, szErrorBoundMode

    config, x = szConfig(), gradient.numpy()
    config.errorBoundMode, config.absErrorBound = szErrorBoundMode.ABS, 2.0**-10
    return lambda: sz.compress(x, config)[0], lambda payload: sz.decompress(payload, x.dtype, x.shape)


def times_longer(row: Row) -> float:
    """Return AlexNet's training time with a codec over that without.

    Each worker encodes its gradient, the aggregator decodes those of all workers, and gradients' share of the
    communication shrinks by the ratio.
    """
    step, nbytes = STEPS[NETWORK], NBYTES[NETWORK]
    ratio = row["nbytes"] / row["payload_nbytes"]
    of_byte_s = (median(row["encode_s"]) + WORKERS * median(row["decode_s"])) / row["nbytes"]
    saved_s = step.communicate_s * GRADIENTS * (1 - 1 / ratio)
    return float((step.total_s - saved_s + ITERATIONS * nbytes * of_byte_s) / step.total_s)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge the training times, and the ratio of a compressor without loss."""
    zlib = row_of(rows, codec=ZLIB)
    low, high = SLOWER
    of_sz = [
        Claim(
            "AlexNet's time with SZ, over that without",
            only(times_longer(row)),
            at_least(low),
            unit=RATIO,
            published=Published(PLACE, (low, high)),
        )
        for row in rows
        if row["codec"] == SZ
    ]
    return [
        Claim(
            "AlexNet's time with a general compressor, over that without",
            only(times_longer(zlib)),
            at_least(low),
            unit=RATIO,
            published=Published(PLACE, (low, high)),
        ),
        *of_sz,
        Claim(
            "ratio of a compressor without loss",
            only(zlib["nbytes"] / zlib["payload_nbytes"]),
            Bound(1.0, 1.2 * SNAPPY_RATIO),
            unit=RATIO,
            published=Published("section III", SNAPPY_RATIO),
        ),
        Claim(
            "AlexNet's time with truncation in software: slightly shorter",
            only(times_longer(row_of(rows, codec="truncate:16"))),
            Bound(0.6, 1.0),
            unit=RATIO,
            published=Published(PLACE),
        ),
        Claim(
            "AlexNet's time with the NIC's format in software",
            only(times_longer(row_of(rows, codec="inceptionn:2^-10"))),
            at_least(low),
            unit=RATIO,
            published=Published(PLACE, (low, high)),
            otherwise=Explanation(VECTORS, at_most(1.0)),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how much longer does training take with compression in software?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(CODECS, 7),
    full=Options(CODECS, 51),
    scaling="codecs are timed on one core on HDC's gradient, and AlexNet's 233 MB take as long by "
    "the byte; the rest of the step is table II's. zlib at level 1 stands for Snappy; SZ is "
    "SZ3 with a bound of 2^-10, where its package pysz is installed (extra papers).",
    seconds=(5, 40),
)
