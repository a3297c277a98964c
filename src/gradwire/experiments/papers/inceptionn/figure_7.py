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
    Basis,
    Bound,
    Claim,
    Explanation,
    Published,
    at_most,
    near,
    only,
    within,
)
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.inceptionn.table_2 import ITERATIONS, NBYTES, STEPS, WORKERS
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.version import installed

if TYPE_CHECKING:
    import torch

PLACE = "figure 7"
SNAPPY = "snappy"
"""A general compressor without loss; from the package cramjam."""
SZ = "sz:2^-10"
"""SZ3, the present version of SZ, with an absolute bound; from the package pysz."""
PACKAGES = {SNAPPY: "cramjam", SZ: "pysz"}
CODECS = (SNAPPY, SZ, "lossless", "truncate:16", "inceptionn:2^-10")
NETWORK = "AlexNet"
SLOWER, SNAPPY_RATIO = (2.0, 4.0), 1.5
TWICE, RATIOS = 0.1, 0.2
"""The shares by which times may leave the published range, and Snappy's ratio its one rounded digit."""
GRADIENTS = WORKERS / (WORKERS + log2(WORKERS))
"""The share of gradients in the communication of an aggregator, by its formula; weights are the rest."""
VECTORS = "kernels here encode and decode gigabytes per second on one core, with vector instructions."


@dataclass(frozen=True)
class Options:
    """Codecs, and how often each encodes."""

    codecs: tuple[str, ...]
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each codec."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [{"codec": each, "network": "HDC, 3 layers, He", "data": data_name()} for each in options.codecs]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Time a codec on a gradient from the middle of a training, on one thread."""
    package = PACKAGES.get(cell["codec"])
    if package is not None and find_spec(package) is None:
        return {"missing": package}
    from gradwire.experiments.papers.inceptionn.training import dataset, one_thread, train

    kept: list[torch.Tensor] = []

    def watch(_step: int, gradient: torch.Tensor) -> None:
        kept[:] = [gradient.clone()]

    train(dataset(cell["data"]), cell["network"], 56, 1, watch=watch)
    with one_thread(1):
        return {**_timed(cell["codec"], kept[0], options.repeats), "tool": _tool(cell["codec"])}


def _tool(codec: str) -> str:
    """Return the package that has a codec, with its version."""
    package = PACKAGES.get(codec, "gradwire")
    return f"{package} {installed(package)}"


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
    import torch

    from gradwire.codecs import parse

    if codec == SNAPPY:
        from cramjam import snappy

        floats = gradient.numpy().tobytes()
        return lambda: snappy.compress_raw(floats), snappy.decompress_raw
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
    ratio = row_of(rows, codec=SNAPPY)
    return [
        _time(row_of(rows, codec=SNAPPY), "with Snappy", within(SLOWER, TWICE), Published(PLACE, SLOWER)),
        _time(row_of(rows, codec=SZ), "with SZ", within(SLOWER, TWICE), Published(PLACE, SLOWER)),
        Claim(
            "ratio of Snappy",
            only(None if "missing" in ratio else ratio["nbytes"] / ratio["payload_nbytes"]),
            near(SNAPPY_RATIO, RATIOS),
            unit=RATIO,
            published=Published("section III", SNAPPY_RATIO),
            not_run=_missing(ratio),
            other_tool=_other_tool(ratio),
        ),
        _time(
            row_of(rows, codec="truncate:16"),
            "with truncation in software: slightly shorter",
            Bound(0.6, 1.0),
            Published(PLACE),
        ),
        _time(
            row_of(rows, codec="inceptionn:2^-10"),
            "with the NIC's format in software",
            within(SLOWER, TWICE),
            Published(PLACE, SLOWER),
            Explanation(VECTORS, at_most(1.0)),
        ),
    ]


def _time(
    row: Row, text: str, wanted: Bound, published: Published, otherwise: Explanation | None = None
) -> Claim:
    """Return a claim about AlexNet's step: a model, in which the codec's times alone are measured."""
    return Claim(
        f"AlexNet's time {text}, over that without",
        only(None if "missing" in row else times_longer(row)),
        wanted,
        unit=RATIO,
        published=published,
        otherwise=otherwise,
        basis=Basis.MODELLED,
        not_run=_missing(row),
        other_tool=_other_tool(row),
    )


def _other_tool(row: Row) -> str:
    """Return what is wrong if a row isn't of the package that has the codec; nothing if it is."""
    wanted, found = PACKAGES.get(row["codec"], "gradwire"), row.get("tool", "none")
    if "missing" in row or found.split(" ")[0] == wanted:
        return ""
    return f"expected {row['codec']} of the package {wanted}, got {found}."


def _missing(row: Row) -> str:
    return f"the package {row['missing']} is not installed (extra papers)." if "missing" in row else ""


ORIGINS = origins(
    SLOWER=paper("figure 7"),
    SNAPPY_RATIO=paper("section III"),
    TWICE=chosen("the published range has one digit"),
    RATIOS=chosen("the published ratio has two digits, and gradients differ"),
    GRADIENTS=chosen("by the formula of an aggregator"),
    codecs=paper("figure 7"),
    repeats=RUN_TIME,
)
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
    "the byte; the rest of the step is table II's, so times are modelled. SZ is SZ3 with a bound "
    "of 2^-10. Snappy and SZ come from the extra papers.",
    origins=ORIGINS,
    seconds=(5, 40),
    version=3,
)
